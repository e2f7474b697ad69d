//! Addresses: what a GID says, how pingpong writes it, and where a `roce://`, `rdma://` or `iwarp://` URL leads.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use verbs_core::Gid;

/// Port on which files are served unless another is named, of TCP and of the connection manager.
pub(crate) const SERVE_PORT: u16 = 7174;

/// Hexadecimal digits of a GID.
pub(crate) const GID_DIGITS: usize = 32;

/// How a client finds the server, by what the URL of a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `roce://`: over TCP.
    Roce,
    /// `rdma://`: by the connection manager.
    Rdma,
    /// `iwarp://`: as the data, by iWARP over TCP.
    Iwarp,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::Roce, Self::Rdma, Self::Iwarp];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Roce => "roce://",
            Self::Rdma => "rdma://",
            Self::Iwarp => "iwarp://",
        }
    }

    /// That of a text, and what is behind it.
    fn of(text: &[u8]) -> Option<(Self, &[u8])> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|scheme| Some((scheme, text.strip_prefix(scheme.prefix().as_bytes())?)))
    }
}

/// Bytes of a path at most, as the kernel has it (PATH_MAX).
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Where to listen.
pub(crate) fn listening(text: &str) -> Result<SocketAddr, String> {
    let example = match text.parse() {
        Ok(address) => SocketAddr::new(address, SERVE_PORT).to_string(),
        Err(_) => format!("0.0.0.0:{SERVE_PORT}"),
    };
    let wrong = |_| format!("an address with a port would be right, such as {example}");
    text.parse().map_err(wrong)
}

/// Whether packets can go from one GID to the other: both are IPv4 or both IPv6.
pub(crate) fn same_family(one: Gid, other: Gid) -> bool {
    IpAddr::from(one).is_ipv4() == IpAddr::from(other).is_ipv4()
}

/// A GID without colons, as pingpong writes it.
pub(crate) fn gid_digits(gid: Gid) -> String {
    format!("{:032x}", u128::from_be_bytes(gid.0))
}

/// The inverse of [`gid_digits`]; `None` unless it is 32 hexadecimal digits.
pub(crate) fn gid_from_digits(digits: &[u8]) -> Option<Gid> {
    if digits.len() != GID_DIGITS {
        return None;
    }
    hex(digits).map(|number| Gid(number.to_be_bytes()))
}

/// A number of 1 to 32 hexadecimal digits and nothing else.
pub(crate) fn hex(digits: &[u8]) -> Option<u128> {
    if digits.is_empty() || digits.len() > GID_DIGITS {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| {
        Some(number << 4 | u128::from(char::from(digit).to_digit(16)?))
    })
}

/// Names a file that a server offers: `roce://HOST[:PORT]/PATH`, `rdma://...` or `iwarp://...`. The host is a name, an IPv4 address
/// or an IPv6 address in brackets; `%` and two digits in the path stand for a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedUrl {
    pub(crate) scheme: Scheme,
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Relative to the directory that is served, not empty.
    pub(crate) path: OsString,
}

/// Why a URL names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error(
        "roce://, rdma:// or iwarp:// would be right; a file of that name is named with ./ before it"
    )]
    Scheme,
    #[error("the host is missing; roce://HOST:PORT/PATH, rdma:// or iwarp:// would be right")]
    NoHost,
    #[error("the path is missing; roce://HOST:PORT/PATH, rdma:// or iwarp:// would be right")]
    NoPath,
    #[error("the host is no name and no address; IPv6 addresses are written in brackets")]
    Host,
    #[error("the port is no number from 1 to 65535")]
    Port,
    #[error("% in the path is followed by two hexadecimal digits, other than 00")]
    Percent,
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    LongPath,
}

impl ServedUrl {
    /// Whether this is meant to be a URL rather than the name of a file.
    pub(crate) fn is_meant(text: &[u8]) -> bool {
        let name = text.iter().take_while(|byte| byte.is_ascii_alphanumeric());
        let (name, rest) = text.split_at(name.count());
        !name.is_empty() && rest.starts_with(b"://")
    }

    /// Takes a URL apart.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, UrlError> {
        let (scheme, rest) = Scheme::of(text).ok_or(UrlError::Scheme)?;
        let slash = rest.iter().position(|&byte| byte == b'/');
        let (authority, path) = rest.split_at(slash.unwrap_or(rest.len()));
        let (host, port) = authority_parts(authority)?;
        let path = decode(path.strip_prefix(b"/").unwrap_or(path))?;
        Ok(Self {
            scheme,
            host,
            port,
            path,
        })
    }
}

impl fmt::Display for ServedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme.prefix())?;
        if self.host.contains(':') {
            write!(f, "[{}]:{}/", self.host, self.port)?;
        } else {
            write!(f, "{}:{}/", self.host, self.port)?;
        }
        for &byte in self.path.as_bytes() {
            if byte.is_ascii_graphic() && byte != b'%' {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Host and port.
fn authority_parts(authority: &[u8]) -> Result<(String, u16), UrlError> {
    if authority.is_empty() {
        return Err(UrlError::NoHost);
    }
    let text = str::from_utf8(authority).map_err(|_| UrlError::Host)?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(UrlError::Host)?;
            host.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?;
            (host, port)
        }
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            match host {
                "" => return Err(UrlError::NoHost),
                host if !host.chars().all(fits) => return Err(UrlError::Host),
                host => (host, port),
            }
        }
    };
    let port = match port.strip_prefix(':') {
        // Numbers have no signs here.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| UrlError::Port)?
        }
        Some(_) => return Err(UrlError::Port),
        None if port.is_empty() => SERVE_PORT,
        None => return Err(UrlError::Host),
    };
    match port {
        0 => Err(UrlError::Port),
        port => Ok((host.into(), port)),
    }
}

/// The bytes that a path stands for.
fn decode(path: &[u8]) -> Result<OsString, UrlError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2).ok_or(UrlError::Percent)?;
        let byte = hex(digits).and_then(|byte| u8::try_from(byte).ok());
        bytes.push(byte.ok_or(UrlError::Percent)?);
        rest = behind;
    }
    match bytes.len() {
        0 => Err(UrlError::NoPath),
        PATH_BYTES_MAX.. => Err(UrlError::LongPath),
        // No file name has that byte.
        _ if bytes.contains(&0) => Err(UrlError::Percent),
        _ => Ok(OsString::from_vec(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Result<ServedUrl, UrlError> {
        ServedUrl::parse(text.as_bytes())
    }

    #[test]
    fn urls_name_host_port_and_path() {
        let right = [
            ("roce://host/a", "host", SERVE_PORT, "a"),
            ("roce://127.0.0.1:80/a/b", "127.0.0.1", 80, "a/b"),
            ("roce://[::1]/a", "::1", SERVE_PORT, "a"),
            ("roce://[fd77::2]:65535/x%20y", "fd77::2", 65535, "x y"),
            ("roce://h//etc/passwd", "h", SERVE_PORT, "/etc/passwd"),
        ];
        for (text, host, port, path) in right {
            let (host, path): (String, OsString) = (host.into(), path.into());
            for scheme in Scheme::ALL {
                let text = text.replace("roce://", scheme.prefix());
                let (host, path) = (String::clone(&host), OsString::clone(&path));
                let expected = ServedUrl {
                    scheme,
                    host,
                    port,
                    path,
                };
                assert_eq!(url(&text), Ok(expected), "{text}");
            }
        }
        let wrong = [
            ("http://127.0.0.1/a", UrlError::Scheme),
            ("roce://", UrlError::NoHost),
            ("roce:///a", UrlError::NoHost),
            ("roce://:1/a", UrlError::NoHost),
            ("roce://h", UrlError::NoPath),
            ("roce://h/", UrlError::NoPath),
            ("roce://::1/a", UrlError::NoHost),
            ("roce://fd77::2/a", UrlError::Port),
            ("roce://[::1/a", UrlError::Host),
            ("roce://[host]/a", UrlError::Host),
            ("roce://[::1]7/a", UrlError::Host),
            ("roce://user@h/a", UrlError::Host),
            ("roce://h:/a", UrlError::Port),
            ("roce://h:0/a", UrlError::Port),
            ("roce://h:+1/a", UrlError::Port),
            ("roce://h:65536/a", UrlError::Port),
            ("roce://h/%", UrlError::Percent),
            ("roce://h/%4", UrlError::Percent),
            ("roce://h/%+1", UrlError::Percent),
            ("roce://h/a%00", UrlError::Percent),
        ];
        for (text, error) in wrong {
            assert_eq!(url(text), Err(error), "{text}");
        }
        let long = format!("roce://h/{}", "a".repeat(PATH_BYTES_MAX));
        assert_eq!(url(&long), Err(UrlError::LongPath));
    }

    #[test]
    fn gids_are_addresses() {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(
            gid_digits(Gid::from(v4)),
            "00000000000000000000ffff0a000002"
        );
        assert!(!same_family(Gid::from(v4), Gid::from(Ipv6Addr::LOCALHOST)));
        for digits in ["", "0", &"0".repeat(31), &"0".repeat(33), &"+".repeat(32)] {
            assert_eq!(gid_from_digits(digits.as_bytes()), None, "{digits}");
        }
    }

    proptest! {
        #[test]
        fn every_gid_comes_back(bytes: [u8; 16]) {
            let gid = Gid(bytes);
            prop_assert_eq!(gid_from_digits(gid_digits(gid).as_bytes()), Some(gid));
            prop_assert_eq!(Gid::from(IpAddr::from(gid)), gid);
        }

        #[test]
        fn every_url_comes_back(
            host in "[a-z0-9.-]{1,20}", v6: [u8; 16], is_v6: bool, port in 1..=u16::MAX,
            path in proptest::collection::vec(1..=u8::MAX, 1..200), scheme in 0..Scheme::ALL.len(),
        ) {
            let host = if is_v6 { Ipv6Addr::from(v6).to_string() } else { host };
            let scheme = Scheme::ALL[scheme];
            let url = ServedUrl { scheme, host, port, path: OsString::from_vec(path) };
            prop_assert_eq!(ServedUrl::parse(url.to_string().as_bytes()), Ok(url));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(
            text in proptest::collection::vec(any::<u8>(), 0..64), near in "[h:%0-9/\\[\\]@]{0,12}",
        ) {
            let scheme = Scheme::Rdma.prefix().as_bytes();
            for text in [&[scheme, &text].concat()[..], &[scheme, near.as_bytes()].concat(), &text] {
                if let Ok(url) = ServedUrl::parse(text) {
                    prop_assert_eq!(ServedUrl::parse(url.to_string().as_bytes()), Ok(url));
                }
                let _ = gid_from_digits(text);
            }
        }
    }
}
