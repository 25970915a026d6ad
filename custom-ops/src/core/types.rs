//! Code for each type of number that an op takes.

/// Runs code in which `T` is the type of numbers of `$dtype`: those listed, and for all others the
/// last, to which the op's check of its operands has narrowed them down.
macro_rules! for_type {
    ($dtype:expr, [$($variant:ident: $type:ty),+; $other:ty], |$t:ident| $run:expr) => {
        match $dtype {
            $(candle::DType::$variant => {
                type $t = $type;
                $run
            })+
            _ => {
                type $t = $other;
                $run
            }
        }
    };
}

/// [`for_type`] of f32 and f64.
macro_rules! for_float {
    ($dtype:expr, |$t:ident| $run:expr) => {
        for_type!($dtype, [F32: f32; f64], |$t| $run)
    };
}
