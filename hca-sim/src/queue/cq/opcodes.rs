//! Opcodes of completions by their number.

use verbs_core::WcOpcode;

/// Opcodes by number. Only numbers of opcodes are pushed; the other entries make a check unnecessary.
pub(super) const OPCODES: [WcOpcode; 256] = {
    let mut opcodes = [WcOpcode::Send; 256];
    let mut i = 0;
    while i < WcOpcode::ALL.len() {
        opcodes[WcOpcode::ALL[i] as usize] = WcOpcode::ALL[i];
        i += 1;
    }
    opcodes
};
