#!/usr/bin/env python3
"""Copies the documents into the folder of a book, and checks links.

pages.py FOLDER          copies them there; a link to what is no page becomes the name of the file
pages.py --check BOOK    fails if a link of a built book leads nowhere
"""

import html.parser
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUMMARY = ROOT / "ci/site.d/summary"
# Pages that are not in docs/, and what they are called in the book.
OTHERS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "reports.md",
    "CHANGELOG.md": "changelog.md",
    "python/README.md": "python.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def anchors(text):
    """The names of the headings, as mdBook and the services that show Markdown make them."""
    names = set()
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            title = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
            names.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower())))
    return names


def pages():
    """The file of each page, by its name in the book."""
    found = {name: ROOT / path for path, name in OTHERS.items()}
    for path in sorted((ROOT / "docs").glob("*.md")):
        found[path.name] = path
    return found


def copy(folder):
    known = pages()
    by_path = {path.resolve(): name for name, path in known.items()}
    broken = []

    def place(source, match):
        picture, text, target = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        path, _, anchor = target.partition("#")
        whole = (source.parent / path).resolve() if path else source.resolve()
        if not whole.exists():
            broken.append(f"{source.relative_to(ROOT)}: {target} does not exist")
        elif anchor and whole.suffix == ".md" and anchor not in anchors(whole.read_text()):
            broken.append(f"{source.relative_to(ROOT)}: {target} has no such heading")
        if whole in by_path:
            return f"[{text}]({by_path[whole]}{'#' + anchor if anchor else ''})"
        if picture and whole.exists():
            return f"![{text}]({whole.relative_to(ROOT / 'docs')})"
        # It is in the repository only.
        return text if text.startswith("`") else f"{text} (`{whole.relative_to(ROOT)}`)"

    folder.mkdir(parents=True)
    for name, path in known.items():
        text = LINK.sub(lambda match: place(path, match), path.read_text())
        (folder / name).write_text(text)
    for pictures in ("pictures", "plots"):
        shutil.copytree(ROOT / "docs" / pictures, folder / pictures)
    shutil.copy(SUMMARY, folder / "SUMMARY.md")
    listed = set(re.findall(r"\(([^)]+\.md)\)", SUMMARY.read_text()))
    broken += [f"ci/site.d/summary does not list {name}" for name in sorted(set(known) - listed)]
    broken += [f"ci/site.d/summary lists {name}, which is no page" for name in sorted(listed - set(known))]
    return broken


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[key] for key in ("href", "src") if attrs.get(key)]
        self.names.add(attrs.get("id"))


def check(book):
    parsed = {}
    for path in book.rglob("*.html"):
        parser = Links()
        parser.feed(path.read_text())
        parsed[path.resolve()] = parser
    broken = []
    for path, parser in parsed.items():
        # Its links are from the root of a server.
        for link in [] if path.name == "404.html" else parser.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", target) or target.startswith("//"):
                continue
            whole = (path.parent / target).resolve() if target else path
            if not whole.exists():
                broken.append(f"{path.name}: {link} does not exist")
            elif anchor and whole in parsed and anchor not in parsed[whole].names:
                broken.append(f"{path.name}: {link} has no such place")
    if not parsed:
        broken.append(f"there is no page in {book}")
    return broken


def main():
    if sys.argv[1] == "--check":
        broken = check(pathlib.Path(sys.argv[2]))
    else:
        broken = copy(pathlib.Path(sys.argv[1]))
    for line in broken:
        print(line, file=sys.stderr)
    sys.exit(1 if broken else 0)


main()
