//! Keys against a reference model.

use super::*;

/// A region in the reference model: numbers only.
#[derive(Clone, Debug)]
struct Known {
    memory: usize,
    offset: u64,
    len: u64,
    iova: u64,
    access: Access,
    pd: u32,
}

/// Half of the re-registered regions keep their keys.
fn keeps_key(known: &Known) -> bool {
    known.offset.is_multiple_of(2)
}

impl Known {
    fn judge(&self, addr: u64, len: u32, pd: u32, need: Access) -> Result<u64, Fault> {
        let (first, end) = (u128::from(addr), u128::from(addr) + u128::from(len));
        let start = u128::from(self.iova);
        if pd != self.pd {
            Err(Fault::Pd)
        } else if !self.access.contains(need) {
            Err(Fault::Access)
        } else if first < start || end > start + u128::from(self.len) {
            Err(Fault::Bounds)
        } else {
            Ok(self.offset + (addr - self.iova))
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register(Known),
    Deregister(usize),
    Reregister(usize, Known),
    /// Key: one of those ever seen, with the low byte changed by that much; address: relative to the start or the
    /// end of the region that the key names or named.
    Check(usize, u8, bool, i64, u32, u32, Access),
}

const SIZES: [usize; 3] = [64, 100, 8192];

fn known() -> impl Strategy<Value = Known> {
    let iova = prop_oneof![
        Just(0),
        Just(0x1000_u64),
        any::<u64>(),
        (0..300_u64).prop_map(|d| u64::MAX - d)
    ];
    (
        0..SIZES.len(),
        0..150_u64,
        0..150_u64,
        iova,
        0..16_u32,
        0..2_u32,
    )
        .prop_map(|(memory, offset, len, iova, access, pd)| Known {
            memory,
            offset,
            len,
            iova,
            access: Access::from_bits_retain(access),
            pd,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let need = prop_oneof![
        Just(Access::empty()),
        (0..4_u32).prop_map(|bit| Access::from_bits_retain(1 << bit))
    ];
    let check = (
        any::<usize>(),
        prop_oneof![4 => Just(0), 1 => any::<u8>()],
        any::<bool>(),
        -20..20_i64,
        0..100_u32,
        0..2_u32,
        need,
    );
    prop_oneof![
        2 => known().prop_map(Step::Register),
        1 => any::<usize>().prop_map(Step::Deregister),
        1 => (any::<usize>(), known()).prop_map(|(i, k)| Step::Reregister(i, k)),
        6 => check.prop_map(|(i, byte, end, d, len, pd, need)| {
            Step::Check(i, byte, end, d, len, pd, need)
        }),
    ]
}

/// A table, its memories, and the model of its expected behaviour.
struct Pair {
    table: Arc<MrTable>,
    memories: Vec<Arc<Memory>>,
    bytes: Vec<Vec<u8>>,
    live: BTreeMap<u32, Known>,
    /// Every key ever issued, with its region.
    seen: Vec<(u32, Known)>,
    misses: u64,
    writes: u8,
}

impl Pair {
    const CAPACITY: u32 = 5;

    fn new(seed: u64) -> Self {
        Self {
            table: Arc::new(MrTable::new(Self::CAPACITY, seed)),
            memories: SIZES.map(memory).to_vec(),
            bytes: SIZES.map(|size| vec![0; size]).to_vec(),
            live: BTreeMap::new(),
            seen: Vec::new(),
            misses: 0,
            writes: 0,
        }
    }

    fn region(&self, known: &Known) -> Region {
        Region {
            memory: Arc::clone(&self.memories[known.memory]),
            offset: known.offset as usize,
            len: known.len as usize,
            iova: known.iova,
            access: known.access,
            pd: known.pd,
        }
    }

    fn legal(known: &Known) -> bool {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        known.offset + known.len <= SIZES[known.memory] as u64
            && known.iova.checked_add(known.len).is_some()
            && (!known.access.intersects(writes) || known.access.contains(Access::LOCAL_WRITE))
    }

    fn learn(&mut self, known: &Known, keys: (LKey, RKey)) {
        let key = keys.0.value();
        let remote = known.access.intersects(Access::REMOTE);
        assert_eq!(keys.1.value(), if remote { key } else { 0 });
        assert!(self.live.insert(key, known.clone()).is_none(), "key in use");
        self.seen.push((key, known.clone()));
    }

    fn pick(&self, i: usize) -> Option<(u32, Known)> {
        (!self.seen.is_empty()).then(|| self.seen[i % self.seen.len()].clone())
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Register(known) => {
                let full = self.live.len() == Self::CAPACITY as usize;
                match self.table.register(self.region(&known)) {
                    Ok(keys) => {
                        assert!(Self::legal(&known) && !full);
                        self.learn(&known, keys);
                    }
                    Err(error) => assert!(full || !Self::legal(&known), "{error}"),
                }
            }
            Step::Deregister(i) => {
                let Some((key, _)) = self.pick(i) else { return };
                let (done, set) = flag();
                let result = self.table.deregister(LKey::new(key), set);
                assert_eq!(result.is_ok(), self.live.remove(&key).is_some());
                assert_eq!(result.is_ok(), done.load(Acquire));
            }
            Step::Reregister(i, known) => {
                let Some((key, _)) = self.pick(i) else { return };
                let (done, set) = flag();
                let keys = if keeps_key(&known) {
                    Keys::Kept
                } else {
                    Keys::New
                };
                let result = self
                    .table
                    .reregister(LKey::new(key), self.region(&known), keys, set);
                let expected = self.live.contains_key(&key) && Self::legal(&known);
                assert_eq!((result.is_ok(), done.load(Acquire)), (expected, expected));
                if let Ok(keys) = result {
                    assert_eq!(keys.0.value() == key, keeps_key(&known));
                    self.live.remove(&key);
                    self.learn(&known, keys);
                }
            }
            Step::Check(i, byte, from_end, delta, len, pd, need) => {
                let Some((key, was)) = self.pick(i) else {
                    return;
                };
                let key = key & !0xff | u32::from((key as u8).wrapping_add(byte));
                let from = if from_end {
                    was.iova.wrapping_add(was.len)
                } else {
                    was.iova
                };
                self.check(key, from.wrapping_add_signed(delta), len, pd, need);
            }
        }
        assert_eq!(self.table.in_use() as usize, self.live.len());
        assert_eq!(self.table.misses(), self.misses);
    }

    fn check(&mut self, key: u32, addr: u64, len: u32, pd: u32, need: Access) {
        let pin = pin();
        let got = self.table.check(&pin, key, addr, len, pd, need);
        if len == 0 {
            assert_eq!(got.expect("no bytes, no check").len(), 0);
            return;
        }
        let judged = self.live.get(&key).map_or(Err(Fault::Key), |known| {
            known
                .judge(addr, len, pd, need)
                .map(|at| (known.memory, at as usize))
        });
        self.misses += u64::from(judged == Err(Fault::Key));
        match (got, judged) {
            (Some(window), Ok((memory, at))) => {
                self.writes = self.writes.wrapping_add(1);
                let data = vec![self.writes; len as usize];
                assert_eq!(window.write_from(&data), Ok(len));
                self.bytes[memory][at..at + len as usize].copy_from_slice(&data);
            }
            (None, Err(fault)) => assert_eq!(self.table.why(&pin), fault),
            (got, judged) => panic!("{got:?}, but the model says {judged:?}"),
        }
    }
}

proptest! {
    /// Goal: key, domain, right and range are judged as the specification says, and data written through a window
    /// lands where it should and nowhere else. Method: random histories on a small table and a model made of
    /// plain numbers in 128 bits.
    #[test]
    fn table_agrees_with_reference(seed: u64, steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new(seed);
        for step in steps {
            pair.run(step);
        }
        for (memory, bytes) in pair.memories.iter().zip(&pair.bytes) {
            let mut got = vec![0; bytes.len()];
            memory.read(0, &mut got).unwrap();
            assert_eq!(&got, bytes);
        }
        for key in pair.live.keys() {
            pair.table.deregister(LKey::new(*key), || ()).unwrap();
        }
        assert!(pair.memories.iter().all(|memory| Arc::strong_count(memory) == 1));
    }
}
