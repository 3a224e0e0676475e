"""What runs and streams keep: the ledger, key files, durable files and directories, privacy statements."""
