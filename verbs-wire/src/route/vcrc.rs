//! Variant CRC: the last two bytes of a packet on an InfiniBand link, over all bytes before them (IBTA vol. 1,
//! 7.8.2). It differs from link to link, because virtual lanes change.

/// The polynomial x^16 + x^12 + x^3 + x + 1, reflected.
const POLYNOMIAL: u16 = 0xd008;

/// Bytes that are looked up at a time.
const STEP: usize = 16;

/// The contribution of each value of a byte to a register, by the number of bytes after it within a step.
static TABLES: [[u16; 256]; STEP] = tables();

/// The CRC of a packet so far.
#[derive(Clone, Copy, Debug)]
pub struct Vcrc(u16);

impl Default for Vcrc {
    fn default() -> Self {
        Self::new()
    }
}

impl Vcrc {
    /// Bytes of the CRC on the wire.
    pub const LEN: usize = 2;

    /// The CRC of no bytes.
    #[inline]
    pub const fn new() -> Self {
        Self(0xffff)
    }

    /// Adds bytes, from the local route header to the ICRC, in any number of pieces.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let (steps, rest) = bytes.as_chunks::<STEP>();
        let mut register = self.0;
        for step in steps {
            let [low, high] = register.to_le_bytes();
            let mut sum = 0;
            for (at, &byte) in step.iter().enumerate() {
                let byte = match at {
                    0 => byte ^ low,
                    1 => byte ^ high,
                    _ => byte,
                };
                sum ^= TABLES[STEP - 1 - at][usize::from(byte)];
            }
            register = sum;
        }
        for &byte in rest {
            let [low, high] = register.to_le_bytes();
            register = TABLES[0][usize::from(byte ^ low)] ^ u16::from(high);
        }
        self.0 = register;
    }

    /// The CRC in wire order.
    #[inline]
    pub const fn finish(self) -> [u8; Self::LEN] {
        (!self.0).to_le_bytes()
    }

    /// The CRC of a packet in one piece, in wire order.
    pub fn of(packet: &[u8]) -> [u8; Self::LEN] {
        let mut crc = Self::new();
        crc.update(packet);
        crc.finish()
    }
}

const fn tables() -> [[u16; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut value = 0;
    while value < 256 {
        let mut register = value as u16;
        let mut bit = 0;
        while bit < 8 {
            let carry = if register & 1 == 0 { 0 } else { POLYNOMIAL };
            register = register >> 1 ^ carry;
            bit += 1;
        }
        tables[0][value] = register;
        value += 1;
    }
    let mut table = 1;
    while table < STEP {
        let mut value = 0;
        while value < 256 {
            let before = tables[table - 1][value];
            tables[table][value] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            value += 1;
        }
        table += 1;
    }
    tables
}
