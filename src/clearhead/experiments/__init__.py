"""The corridor from a recipe to published numbers: what can be reproduced, and how."""
