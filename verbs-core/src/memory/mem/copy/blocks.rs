//! Blocks of machine instructions with and without a guard, for every machine: each is in the tables of [`super::guard`] or ends
//! the process by its fault.

/// A block in the table of [`super::guard`]: its entry is the block, and where to go on after a fault in it. Without a fault
/// this costs nothing.
macro_rules! in_table {
    ($on_fault:literal [$($line:literal),+ $(,)?] $($operands:tt)*) => {
        asm!(
            "2:", $($line,)+ "3:",
            ".pushsection verbs_guard,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            $on_fault,
            ".popsection",
            $($operands)*
        )
    };
}

/// A block whose fault ends the function with [`Unmapped`].
macro_rules! guarded {
    ([$($lines:tt)*] $($operands:tt)*) => {
        in_table!(
            ".long {fault} - ." [$($lines)*]
            fault = label { return Err(Unmapped::taken()) },
            $($operands)*
        )
    };
}

/// A block without a guard: a fault in it ends the process.
macro_rules! plain {
    ([$($line:literal),+ $(,)?] $($operands:tt)*) => {
        asm!($($line,)+ $($operands)*)
    };
}

/// A block that has a result, so that it cannot go elsewhere: after a fault it goes on behind it, and [`guard::result`]
/// says so.
macro_rules! checked {
    ([$($lines:tt)*] $($operands:tt)*) => {
        in_table!(".long 3b - ." [$($lines)*] $($operands)*)
    };
}

/// A call of a function that saves nothing, whose fault ends the function: where it returns to goes into the table.
macro_rules! called {
    ([$($line:literal),+ $(,)?] $($operands:tt)*) => {
        asm!(
            $($line,)+ "2:",
            ".pushsection verbs_guard_calls,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long {fault} - .",
            ".popsection",
            fault = label { return Err(Unmapped::taken()) },
            $($operands)*
        )
    };
}
