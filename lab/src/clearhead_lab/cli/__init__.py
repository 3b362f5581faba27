"""The commands that the laboratory adds to `clearhead`: train, attack, reproduce, verify and demo."""
