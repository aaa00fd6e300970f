"""The commands of `kvweave`, a module each: options, and what is printed. They compute nothing themselves."""
