//! Which operations have met which faults.

use std::fmt;
use std::ops::AddAssign;

use verbs_core::Kind;

macro_rules! rows {
    ($(#[$doc:meta])* $Name:ident { $($Variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $Name { $(#[doc = $text] $Variant,)* }

        impl $Name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$Variant),*];

            /// Its name in the table.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Variant => $text),* }
            }
        }
    };
}

rows! {
    /// What a work request does, and its options.
    Operation {
        Send = "SEND",
        SendImm = "SEND imm",
        Write = "WRITE",
        WriteImm = "WRITE imm",
        Read = "READ",
        CompareSwap = "CMP SWAP",
        FetchAdd = "FETCH ADD",
        MaskedCompareSwap = "masked CMP",
        MaskedFetchAdd = "masked ADD",
        AtomicWrite = "ATOMIC WRITE",
        Flush = "FLUSH",
        RegMr = "REG_MR",
        LocalInv = "LOCAL_INV",
        Receive = "receive",
        SharedReceive = "SRQ receive",
        Inline = "inline",
        Gathered = "several SGEs",
        Fenced = "fenced",
        Solicited = "solicited",
        Unsignaled = "unsignaled",
        UcSend = "UC SEND",
        UcWrite = "UC WRITE",
        UcReceive = "UC receive",
        Datagram = "UD SEND",
        Multicast = "UD multicast",
        DatagramReceive = "UD receive",
        XrcSend = "XRC SEND",
        XrcWrite = "XRC WRITE",
        XrcRead = "XRC READ",
        XrcReceive = "XRC receive",
        BindMw = "BIND_MW",
        SendInv = "SEND inv",
        WindowOne = "window 1",
        WindowTwoA = "window 2A",
        WindowTwoB = "window 2B",
        FastKey = "fast key",
        PoolKey = "pool key",
    }
}

rows! {
    /// What happened to a work request between its post and its completion.
    Cell {
        Clean = "clean",
        Loss = "loss",
        Drop = "drop",
        Duplication = "dup",
        Reordering = "reorder",
        Corruption = "corrupt",
        Flap = "flap",
        Rnr = "RNR",
        QpError = "QP err",
        Removal = "removal",
    }
}

rows! {
    /// How a verb ended.
    VerbCell {
        Inline = "inline",
        Delayed = "delayed",
        Refused = "refused",
        Failed = "failed",
        Lost = "lost",
        Cancelled = "cancelled",
        Removed = "removed",
    }
}

/// How often each operation has met each fault, and how often each verb has ended in each result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    operations: Vec<[u64; Cell::ALL.len()]>,
    verbs: Vec<[u64; VerbCell::ALL.len()]>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            operations: vec![[0; Cell::ALL.len()]; Operation::ALL.len()],
            verbs: vec![[0; VerbCell::ALL.len()]; Kind::ALL.len()],
        }
    }
}

impl Coverage {
    pub(crate) fn hit(&mut self, operation: Operation, cell: Cell) {
        self.operations[operation as usize][cell as usize] += 1;
    }

    pub(crate) fn verb(&mut self, kind: Kind, cell: VerbCell) {
        self.verbs[kind as usize][cell as usize] += 1;
    }

    /// How often that operation met that fault.
    pub fn of(&self, operation: Operation, cell: Cell) -> u64 {
        self.operations[operation as usize][cell as usize]
    }

    /// How often that verb ended in that result.
    pub fn of_verb(&self, kind: Kind, cell: VerbCell) -> u64 {
        self.verbs[kind as usize][cell as usize]
    }

    /// Operations and faults that have not met.
    pub fn missing(&self) -> Vec<(Operation, Cell)> {
        let cells = |&operation: &Operation| Cell::ALL.iter().map(move |&cell| (operation, cell));
        let all = Operation::ALL.iter().flat_map(cells);
        all.filter(|&(operation, cell)| self.of(operation, cell) == 0)
            .collect()
    }

    /// Verbs that no run has issued.
    pub fn missing_verbs(&self) -> Vec<Kind> {
        let all = Kind::ALL.iter().copied();
        all.filter(|&kind| self.verbs[kind as usize].iter().all(|&hits| hits == 0))
            .collect()
    }
}

impl AddAssign<&Self> for Coverage {
    fn add_assign(&mut self, other: &Self) {
        for (mine, others) in self.operations.iter_mut().zip(&other.operations) {
            mine.iter_mut()
                .zip(others)
                .for_each(|(mine, others)| *mine += others);
        }
        for (mine, others) in self.verbs.iter_mut().zip(&other.verbs) {
            mine.iter_mut()
                .zip(others)
                .for_each(|(mine, others)| *mine += others);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, cells: &[String]| {
            write!(f, "{name:<14}")?;
            cells.iter().try_for_each(|cell| write!(f, "{cell:>10}"))?;
            writeln!(f)
        };
        let names: Vec<String> = Cell::ALL
            .iter()
            .map(|cell| cell.name().to_owned())
            .collect();
        line("operation", &names)?;
        for &operation in Operation::ALL {
            let hits = self.operations[operation as usize];
            line(operation.name(), &hits.map(|hits| hits.to_string()))?;
        }
        let names: Vec<String> = VerbCell::ALL
            .iter()
            .map(|cell| cell.name().to_owned())
            .collect();
        line("\nverb", &names)?;
        for &kind in Kind::ALL {
            let hits = self.verbs[kind as usize];
            if hits.iter().any(|&hits| hits != 0) {
                line(kind.name(), &hits.map(|hits| hits.to_string()))?;
            }
        }
        Ok(())
    }
}
