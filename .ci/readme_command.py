"""Print one of the README's marked commands, so that what is checked is what is documented.

A command is a code block of one line under a comment that names it::

    <!-- command: test -->
    ```bash
    python3 -m venv ...
    ```
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def command(name: str, text: str) -> str:
    """The line of the block called `name` in the README's `text`."""
    blocks = re.findall(rf"<!-- command: {re.escape(name)} -->\n```bash\n(.*?)\n```", text, re.DOTALL)
    if len(blocks) != 1:
        raise SystemExit(f"README.md has {len(blocks)} blocks marked 'command: {name}', and needs one")
    if "\n" in blocks[0]:
        raise SystemExit(f"the README's command '{name}' is longer than one line")
    return blocks[0]


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))
