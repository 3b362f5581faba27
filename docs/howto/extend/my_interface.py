"""An interface: attention modules with a method `attend(q, k, v)`, which ends with their projection `out`."""

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
        """Run the handlers on one call: q, k, v are (b, h, n, d)."""
        module, scale = self.module, q.shape[-1] ** -0.5
        call = Call(name=self.name, module=module, interface=self.interface, q=q, k=k, v=v, scale=scale)

        def compute():
            joined = []  # the attention's output, (b, n, h d), is what the projection gets
            with module.out.register_forward_pre_hook(lambda _, inputs: joined.append(inputs[0])):
                returned = type(module).attend(module, q, k, v)
            return joined[0].unflatten(-1, (q.shape[1], -1)).transpose(1, 2), returned

        output, original = self.run(call, compute)
        if output is original.output:
            return original.model_output
        return module.out(output.transpose(1, 2).flatten(2))


def find(model):
    """Return the modules with such a method."""
    return [Layer(path=path, module=part) for path, part in model.named_modules() if hasattr(type(part), "attend")]


def attach(layer, handler):
    """Put a handler at the module's calls."""
    return attach_to(layer, handler, AttendAttachment)


INTERFACE = ch.Interface(name="attend-method", find=find, attach=attach)
