//! The numbers of Klaus and Welles, "Optimizing propagation and sparsity enforcement for a fully
//! connected scalable feedforward sparse autoencoder", Boston University, 2014, as printed.

/// Input and hidden nodes of the eight sizes.
pub const SIZES: [(usize, usize); 8] =
    [(64, 32), (128, 64), (256, 128), (512, 256), (1024, 512), (2048, 1024), (4096, 2048), (8192, 4096)];

/// Rows of a pass.
pub const ROWS: usize = 10_000;

/// A line of a table: a code variant, and a number for each size.
pub type Line = (&'static str, [f64; 8]);

/// Table 6: seconds of a pass. The digit of a variant is the optimisation flag of its compiler.
/// Tables 1 to 5 hold lines of it, see [`TABLES`].
#[rustfmt::skip]
pub const SECONDS: [Line; 18] = [
    ("serial_naive_0", [4.13, 15.07, 58.39, 260.96, 1045.78, 4480.39, 18_990.84, 76_136.01]),
    ("serial_naive_1", [1.29, 4.14, 16.66, 65.9, 268.3, 1321.22, 6273.55, 25_763.8]),
    ("serial_naive_2", [1.2, 3.85, 15.56, 63.41, 266.31, 1285.16, 6242.11, 26_455.83]),
    ("serial_naive_3", [1.1, 3.54, 14.33, 57.9, 239.4, 1229.89, 5718.97, 24_152.99]),
    ("serial_base_0", [2.17, 8.24, 31.94, 125.71, 501.79, 2001.83, 8003.89, 31_994.42]),
    ("serial_base_1", [0.66, 2.3, 8.51, 32.24, 129.46, 516., 2048.37, 8183.33]),
    ("serial_base_2", [0.55, 1.91, 6.93, 25.85, 104.13, 418.37, 1668.43, 6706.02]),
    ("serial_base_3", [0.55, 1.9, 6.91, 25.91, 104.24, 418.25, 1665.2, 6717.96]),
    ("serial_loop_0", [0.85, 2.89, 10.37, 41.04, 165.37, 659.59, 2599.62, 10_441.16]),
    ("serial_loop_1", [0.38, 1.12, 3.58, 13.53, 60.22, 246.56, 977.7, 3876.7]),
    ("serial_loop_2", [0.37, 1.05, 3.32, 13.21, 58.63, 243.9, 982.09, 3991.94]),
    ("serial_loop_3", [0.36, 1.04, 3.3, 12.61, 56.52, 233.29, 932.28, 3829.75]),
    ("serial_omp_0", [4.47, 15.86, 53.25, 189.46, 801.07, 2851.26, 10_444.64, 38_913.18]),
    ("serial_omp_1", [6.61, 5.01, 18.37, 78.55, 297.12, 1010.91, 3649.42, 13_340.75]),
    ("serial_omp_2", [1.6, 3.46, 19.17, 35.42, 142.6, 626.54, 2063.9, 7263.56]),
    ("serial_omp_3", [7.04, 6.15, 12.7, 27.52, 117.62, 525.72, 1972.42, 6755.93]),
    ("Matlab", [0.22, 0.31, 6.34, 7.18, 34.3, 317.16, 692.25, 3404.98]),
    ("GPU", [1.93, 3.66, 9.54, 15.57, 22.94, 78.28, 306.71, 1287.14]),
];

/// Table 7: how many times as long each variant takes as the CUDA program.
#[rustfmt::skip]
pub const SPEEDUPS: [Line; 18] = [
    ("serial_naive_0", [2.1, 4.1, 6.1, 16.8, 45.6, 57.2, 61.9, 59.2]),
    ("serial_naive_1", [0.7, 1.1, 1.7, 4.2, 11.7, 16.9, 20.5, 20.0]),
    ("serial_naive_2", [0.6, 1.1, 1.6, 4.1, 11.6, 16.4, 20.4, 20.6]),
    ("serial_naive_3", [0.6, 1.0, 1.5, 3.7, 10.4, 15.7, 18.6, 18.8]),
    ("serial_base_0", [1.1, 2.3, 3.3, 8.1, 21.9, 25.6, 26.1, 24.9]),
    ("serial_base_1", [0.3, 0.6, 0.9, 2.1, 5.6, 6.6, 6.7, 6.4]),
    ("serial_base_2", [0.3, 0.5, 0.7, 1.7, 4.5, 5.3, 5.4, 5.2]),
    ("serial_base_3", [0.3, 0.5, 0.7, 1.7, 4.5, 5.3, 5.4, 5.2]),
    ("serial_loop_0", [0.4, 0.8, 1.1, 2.6, 7.2, 8.4, 8.5, 8.1]),
    ("serial_loop_1", [0.2, 0.3, 0.4, 0.9, 2.6, 3.1, 3.2, 3.0]),
    ("serial_loop_2", [0.2, 0.3, 0.3, 0.8, 2.6, 3.1, 3.2, 3.1]),
    ("serial_loop_3", [0.2, 0.3, 0.3, 0.8, 2.5, 3.0, 3.0, 3.0]),
    ("serial_omp_0", [2.3, 4.3, 5.6, 12.2, 34.9, 36.4, 34.1, 30.2]),
    ("serial_omp_1", [3.4, 1.4, 1.9, 5.0, 13.0, 12.9, 11.9, 10.4]),
    ("serial_omp_2", [0.8, 0.9, 2.0, 2.3, 6.2, 8.0, 6.7, 5.6]),
    ("serial_omp_3", [3.6, 1.7, 1.3, 1.8, 5.1, 6.7, 6.4, 5.2]),
    ("Matlab", [0.1, 0.1, 0.7, 0.5, 1.5, 4.1, 2.3, 2.6]),
    ("GPU", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
];

/// Tables 1 to 5: what each is of, and the first letters of the variants in it; all but the last
/// have Matlab, too.
pub const TABLES: [(&str, &str); 5] = [
    ("naive serial implementation", "serial_naive"),
    ("baseline serial implementation", "serial_base"),
    ("8x loop unrolled serial implementation", "serial_loop"),
    ("serial OpenMP implementation", "serial_omp"),
    ("CUDA implementation", "GPU"),
];

/// The seconds of a variant; none of another name.
pub fn seconds(variant: &str) -> Option<[f64; 8]> {
    SECONDS.iter().find(|(name, _)| *name == variant).map(|(_, seconds)| *seconds)
}

/// The seconds of a variant at a size of the paper.
pub fn seconds_at(variant: &str, size: (usize, usize)) -> Option<f64> {
    let place = SIZES.iter().position(|known| *known == size)?;
    seconds(variant)?.get(place).copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_speed_ups_of_table_7_are_the_ratios_of_table_6() {
        let gpu = seconds("GPU").unwrap();
        for ((variant, seconds), (name, ratios)) in SECONDS.iter().zip(&SPEEDUPS) {
            assert_eq!(variant, name);
            for ((seconds, gpu), ratio) in seconds.iter().zip(&gpu).zip(ratios) {
                // Printed to one decimal; times to two, which matters for the shortest.
                assert!((seconds / gpu - ratio).abs() < 0.06, "{name}: {seconds} / {gpu}, not {ratio}");
            }
        }
    }

    #[test]
    fn a_size_and_a_variant_are_found_by_name() {
        assert_eq!(seconds_at("GPU", (64, 32)), Some(1.93));
        assert_eq!(seconds_at("Matlab", (8192, 4096)), Some(3404.98));
        assert_eq!((seconds_at("GPU", (20, 10)), seconds_at("other", (64, 32))), (None, None));
        for (_, letters) in TABLES {
            assert!(SECONDS.iter().any(|(name, _)| name.starts_with(letters)), "{letters}");
        }
    }
}
