"""An app for silos: a client app for hospitals, and a server app without secrets."""
