"""Replies that are wrong in known ways, a link that carries them, and a judge of what became of them."""
