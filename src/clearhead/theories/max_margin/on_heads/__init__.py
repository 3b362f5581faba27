"""The theory on real heads: their SVM problems, margins and controls."""
