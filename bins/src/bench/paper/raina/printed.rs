//! What the paper prints.

/// Seconds for 1 million examples on a single core, two cores and the GPU, a GeForce GTX 280, and
/// the speed-up that is printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printed {
    pub single: f64,
    pub dual: f64,
    pub gpu: f64,
    pub speedup: f64,
}

const fn row(single: f64, dual: f64, gpu: f64, speedup: f64) -> Printed {
    Printed { single, dual, gpu, speedup }
}

/// Table 1: source, application, millions of parameters.
pub(super) const TABLE1: [(&str, &str, f64); 5] = [
    ("Hinton et al., 2006", "Digit images", 1.6),
    ("Hinton & Salakhutdinov", "Face images", 3.8),
    ("Salakhutdinov & Hinton", "Sem. hashing", 2.6),
    ("Ranzato & Szummer", "Text", 3.),
    ("Our model", "", 100.),
];

/// Table 2: visible and hidden units of an RBM.
pub(super) const TABLE2: [([usize; 2], Printed); 4] = [
    ([576, 1024], row(563., 497., 38.6, 12.9)),
    ([1024, 4096], row(3638., 2987., 184., 16.2)),
    ([2304, 16_000], row(172_803., 93_586., 1376., 68.)),
    ([4096, 11_008], row(223_741., 125_381., 1726., 72.6)),
];

/// Table 3: the side of the images of a model of overlapping patches, 24×24 pixels every 8, with
/// 192 hidden units each.
pub(super) const TABLE3: [(usize, Printed); 2] =
    [(144, row(38_455., 32_236., 3415., 9.4)), (192, row(77_246., 65_235., 6435., 10.1))];

/// Table 4: per cent of activations that are not 0; seconds for 5000 examples.
pub(super) const TABLE4: [(f64, Printed); 3] =
    [(3., row(215., 191., 37., 5.2)), (6., row(403., 375., 41.5, 9.)), (10., row(908., 854., 55.8, 15.3))];

/// Section 2: milliseconds of a product of two 1000×1000 matrices with transfers; the share of it
/// that is computing; that share for 25 products whose transfers are made together.
pub(super) const SECTION2: (f64, f64, f64) = (20., 0.005, 0.25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_ups_that_are_printed_follow_from_the_times() {
        let tables = TABLE2.iter().map(|row| row.1).chain(TABLE3.iter().map(|row| row.1));
        for printed in tables.chain(TABLE4.iter().map(|row| row.1)) {
            let off = printed.single.min(printed.dual) / printed.gpu / printed.speedup - 1.;
            assert!(off.abs() < 0.01, "{printed:?}: {off}");
        }
    }
}
