"""The theory on real heads: their problems, their margins, and chance."""
