"""The compiled CPU kernel of symmetric attention: its C++ sources, `build`, and `library`, which loads it.

Everything works without it, slower. `build` uses the standard library alone, because it runs during installation;
`library` loads the result on first use.
"""
