"""Fences of Markdown, which hold code: which lines stand in one. Knows nothing else of the text."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}+(?=[^`]*+$)|~{3,})")


class Fences:
    """Follows a text line by line. `mark`: what opened the fence that has not ended yet; empty where none is open."""

    mark = ""

    def holds(self, line: str) -> bool:
        """Takes the next line; whether it stands in a fence, or is an end of one."""
        found = _FENCE.match(line)
        if not self.mark:
            self.mark = found[1] if found else ""
        elif found is None or not found[1].startswith(self.mark) or line[found.end() :].strip():
            return True
        else:
            self.mark = ""
        return found is not None
