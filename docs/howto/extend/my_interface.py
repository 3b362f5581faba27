"""An interface: attention modules that call a method `attend(q, k, v)` of their own."""

import clearhead as ch
from clearhead.interfaces import Attachment, Call, Layer, attach_to


class AttendAttachment(Attachment):
    """Handlers at the calls of one module's `attend`: an attribute of that name hides the method."""

    def install(self):
        """Intercept the calls."""
        self.module.attend = self.attend

    def remove(self):
        """Leave the module as it was."""
        del self.module.attend

    def attend(self, q, k, v):
        """Run the handlers on one call."""
        own = type(self.module).attend
        scale = q.shape[-1] ** -0.5
        call = Call(name=self.name, module=self.module, interface=self.interface, q=q, k=k, v=v, scale=scale)

        def compute():
            out = own(self.module, q, k, v)
            return out, out  # in the layout of the call, and the model's own tensor

        return self.run(call, compute)[0]


def find(model):
    """Return the modules with such a method."""
    return [Layer(path=path, module=part) for path, part in model.named_modules() if hasattr(type(part), "attend")]


def attach(layer, handler):
    """Put a handler at the module's calls."""
    return attach_to(layer, handler, AttendAttachment)


INTERFACE = ch.Interface(name="attend method", find=find, attach=attach)
