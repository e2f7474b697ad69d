//! One direction of a recorded connection, read by our formats and written again.

use std::io::{self, Read as _};

use hca_sim::wire::iwarp::{Fpdu, Header, Startup};

use crate::host::Failed;

/// Reads a stream from stdin, as hexadecimal digits with any space between them: a startup frame, then FPDUs. `requests`:
/// the frame is a Request and not a Reply. All of it is written again, to the same bytes.
pub(crate) fn stream(requests: bool) -> Result<String, Failed> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let bytes = bytes(&text)?;
    let frame = if requests {
        Startup::parse_request(&bytes)?
    } else {
        Startup::parse_reply(&bytes)?
    };
    let (startup, len) = frame.ok_or("the startup frame is not whole")?;
    // One side asks for them, and then both have them.
    let has_crc = true;
    let mut again = vec![0; bytes.len() + 64];
    let mut done = startup.emit(&mut again)?;
    if done != len {
        return Err(format!("a startup frame of {len} bytes became {done}").into());
    }
    let mut count = 0;
    while done < bytes.len() {
        let (fpdu, len) = Fpdu::parse(&bytes[done..], has_crc)?
            .ok_or_else(|| format!("FPDU {count} is not whole"))?;
        let (header, payload) = Header::parse(fpdu.ulpdu)?;
        let mut ulpdu = vec![0; header.wire_len()];
        header.emit(&mut ulpdu)?;
        ulpdu.extend_from_slice(payload);
        done += Fpdu { ulpdu: &ulpdu }.emit(has_crc, &mut again[done..])?;
        count += 1;
        if again[..done] != bytes[..done] {
            return Err(format!("FPDU {count}, of {len} bytes, became another").into());
        }
    }
    Ok(format!(
        "{count} FPDUs and a startup frame became the same {done} bytes"
    ))
}

fn bytes(text: &str) -> Result<Vec<u8>, Failed> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect();
    let digits = digits.ok_or("that is not hexadecimal")?;
    Ok(digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect())
}
