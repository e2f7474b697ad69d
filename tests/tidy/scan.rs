//! A small scanner of Rust source: enough to tell code from prose, to pair brackets, and to find
//! words, attributes, functions and imports. Offsets are bytes.

use std::ops::Range;

/// The text with comments and the insides of strings and characters replaced by spaces. Length and
/// line breaks stay, so that offsets and lines mean the same in both.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let (blank, next) = prose_at(text, i).unwrap_or((i..i, i + 1));
        for byte in &mut out[blank] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        i = next;
    }
    String::from_utf8(out).expect("whole characters were replaced by spaces")
}

/// What to blank of the comment, string or character that starts at `i`, and where code continues.
fn prose_at(text: &str, i: usize) -> Option<(Range<usize>, usize)> {
    let bytes = text.as_bytes();
    let within_quotes = |inside: Range<usize>| {
        let next = inside.end + 1;
        (inside, next)
    };
    match bytes[i] {
        b'/' if bytes[i..].starts_with(b"//") => {
            let end = line_end(bytes, i);
            Some((i..end, end))
        }
        b'/' if bytes[i..].starts_with(b"/*") => {
            let end = block_comment_end(bytes, i);
            Some((i..end, end))
        }
        b'"' => Some(within_quotes(i + 1..string_end(bytes, i + 1))),
        b'\'' => char_end(text, i).map(|end| within_quotes(i + 1..end)),
        b'r' if starts_word(bytes, i) => raw_string(bytes, i).map(within_quotes),
        _ => None,
    }
}

/// Whether an identifier may start at `i`; prefixes of byte and C strings count as a start.
fn starts_word(bytes: &[u8], i: usize) -> bool {
    match i.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b' | b'c') => i < 2 || !is_word(bytes[i - 2]),
        Some(before) => !is_word(before),
        None => true,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    let length = bytes[from..].iter().position(|&byte| byte == b'\n');
    length.map_or(bytes.len(), |length| from + length)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0;
    let mut i = from;
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if bytes[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    bytes.len()
}

/// Place of the quote that ends the string whose inside starts at `from`.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut i = from;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// Place of the quote that ends the character at `quote`, `None` if a lifetime starts there.
fn char_end(text: &str, quote: usize) -> Option<usize> {
    let inside = text[quote + 1..].chars().next()?;
    let after = quote + 1 + inside.len_utf8();
    if inside == '\\' {
        let escaped = after + 1;
        let close = text.as_bytes()[escaped..].iter().position(|&b| b == b'\'');
        return close.map(|close| escaped + close);
    }
    (text.as_bytes().get(after) == Some(&b'\'')).then_some(after)
}

/// The inside of the raw string whose `r` is at `i`.
fn raw_string(bytes: &[u8], i: usize) -> Option<Range<usize>> {
    let hashes = bytes[i + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = i + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"')
        .chain(std::iter::repeat_n(b'#', hashes))
        .collect();
    let length = bytes[open + 1..]
        .windows(close.len())
        .position(|window| window == close);
    let end = length.map_or(bytes.len(), |length| open + 1 + length);
    Some(open + 1..end)
}

/// Line of an offset, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// Every place where `needle` occurs as whole words.
pub(crate) fn words<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(needle).filter_map(move |(at, _)| {
        let end = at + needle.len();
        let starts = at == 0 || !is_word(bytes[at - 1]) || !is_word(needle.as_bytes()[0]);
        let ends = bytes.get(end).is_none_or(|&byte| !is_word(byte))
            || !is_word(needle.as_bytes()[needle.len() - 1]);
        (starts && ends).then_some(at)
    })
}

/// Place of the bracket that closes the one at `open`, in code without strings and comments.
pub(crate) fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// An attribute: its place, and the text between its brackets.
pub(crate) struct Attribute<'a> {
    pub(crate) at: usize,
    pub(crate) end: usize,
    pub(crate) content: &'a str,
}

/// Every attribute, outer and inner.
pub(crate) fn attributes(code: &str) -> Vec<Attribute<'_>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices('#') {
        let rest = code[at + 1..].trim_start();
        let rest = rest.strip_prefix('!').unwrap_or(rest).trim_start();
        let open = code.len() - rest.len();
        if !rest.starts_with('[') {
            continue;
        }
        if let Some(close) = closing(code, open) {
            found.push(Attribute {
                at,
                end: close + 1,
                content: code[open + 1..close].trim(),
            });
        }
    }
    found
}

/// A module that exists only in tests.
pub(crate) struct TestModule<'a> {
    pub(crate) name: &'a str,
    /// From the attribute to the closing brace; `None` if the module is a file of its own.
    pub(crate) body: Option<Range<usize>>,
    /// Whether it exists only where loom runs it.
    pub(crate) is_model: bool,
}

/// Every `#[cfg(test)] mod`, including those with further conditions inside `all`.
pub(crate) fn test_modules(code: &str) -> Vec<TestModule<'_>> {
    attributes(code)
        .into_iter()
        .filter_map(|attribute| {
            let condition = format!("all{}", attribute.content.strip_prefix("cfg")?);
            if !needs(&condition, "test") {
                return None;
            }
            let (name, after) = module_after(code, attribute.end)?;
            let body = match code[after..].trim_start().chars().next()? {
                '{' => {
                    let open = after + code[after..].find('{')?;
                    Some(attribute.at..closing(code, open)? + 1)
                }
                _ => None,
            };
            let is_model = needs(&condition, "verbs_loom");
            Some(TestModule {
                name,
                body,
                is_model,
            })
        })
        .collect()
}

/// Whether a condition of `cfg` can hold only where `flag` is set.
fn needs(condition: &str, flag: &str) -> bool {
    let condition = condition.trim();
    let Some((name, list)) = condition.split_once('(') else {
        return condition == flag;
    };
    let list = list.strip_suffix(')').unwrap_or(list);
    let mut parts = top_level_parts(list).into_iter();
    match name.trim() {
        "all" => parts.any(|part| needs(part, flag)),
        "any" => parts.all(|part| needs(part, flag)),
        _ => false,
    }
}

/// The parts of a list between the commas outside brackets; empty ones are left out.
fn top_level_parts(list: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = list.split(move |c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

/// Name of the module that is declared at `from`, after further attributes and a visibility, and
/// where its name ends.
pub(crate) fn module_after(code: &str, from: usize) -> Option<(&str, usize)> {
    let mut rest = code[from..].trim_start();
    while rest.starts_with('#') {
        let open = code.len() - rest.len() + rest.find('[')?;
        rest = code[closing(code, open)? + 1..].trim_start();
    }
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.trim_start();
        if rest.starts_with('(') {
            rest = rest[rest.find(')')? + 1..].trim_start();
        }
    }
    let rest = rest.strip_prefix("mod ")?;
    let name = rest
        .split(|c: char| c != '_' && !c.is_alphanumeric())
        .next()?;
    Some((name, code.len() - rest.len() + name.len()))
}

/// A function: its name and the range from `fn` to its closing brace.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) range: Range<usize>,
}

/// Every function with a body.
pub(crate) fn functions(code: &str) -> Vec<Function<'_>> {
    words(code, "fn")
        .filter_map(|at| {
            let rest = code[at + 2..].trim_start();
            let name = rest
                .split(|c: char| c != '_' && !c.is_alphanumeric())
                .next()?;
            if name.is_empty() {
                return None;
            }
            let open = body_after(code, at)?;
            Some(Function {
                name,
                range: at..closing(code, open)? + 1,
            })
        })
        .collect()
}

/// The brace that opens the body of the function at `from`; `None` for a declaration.
fn body_after(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.checked_sub(1)?,
            b'{' if depth == 0 => return Some(at),
            b';' | b'}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Every path that a `use` imports, with the place of its `use`; braces are expanded.
pub(crate) fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "use") {
        let rest = &code[at + 3..];
        let Some(end) = rest.find(';') else { continue };
        if rest.trim_start().starts_with('<') {
            continue;
        }
        let tree: String = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let mut paths = Vec::new();
        spread("", &tree, &mut paths);
        found.extend(paths.into_iter().map(|path| (at, path)));
    }
    found
}

/// Expands `a::{b, c::{d}}` into `a::b` and `a::c::d`.
fn spread(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        paths.push(format!("{prefix}{path}").replace(' ', ""));
        return;
    };
    let prefix = format!("{prefix}{}", &tree[..open]);
    let Some(close) = closing(tree, open) else {
        return;
    };
    for part in top_level_parts(&tree[open + 1..close]) {
        spread(&prefix, part, paths);
    }
}
