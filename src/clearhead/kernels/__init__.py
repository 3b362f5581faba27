"""The compiled kernel of symmetric attention on a CPU: its C++ sources, how they are built, and how it is loaded.

Everything works without it, slower. `build` needs the standard library alone, because it runs while clearhead is being
installed; `library` loads what was built, when it is first asked for.
"""
