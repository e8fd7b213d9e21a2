"""Parts into results: join, account for every record, deliver; export and clean afterwards."""
