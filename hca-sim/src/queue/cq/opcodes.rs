//! Opcodes of completions by their number.

use verbs_core::WcOpcode;

/// By number. Only numbers of opcodes are pushed; the others are there to need no check.
pub(super) const OPCODES: [WcOpcode; 256] = {
    let mut opcodes = [WcOpcode::Send; 256];
    let mut i = 0;
    while i < WcOpcode::ALL.len() {
        opcodes[WcOpcode::ALL[i] as usize] = WcOpcode::ALL[i];
        i += 1;
    }
    opcodes
};
