"""Models whose layers can have any operator, and folders of them."""
