//! Each form of the kernels, at sizes about those that it ends at.
use super::{Rule, assert_codes, moved, problem};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{Pursuit, SparseCodes};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_same_bits, devices};

/// Signals, atoms, samples, steps. By the form of the kernel for f32, each below, at and above the
/// sizes that it ends at.
const SIZES: [(usize, usize, usize, usize); 50] = [
    // One warp a signal: 128 atoms and up to 8, 16, 32 steps,
    (1, 1, 1, 1),
    (5, 3, 4, 2),
    (37, 31, 17, 4),
    (33, 32, 20, 7),
    (37, 33, 16, 8),
    (64, 127, 40, 9),
    (65, 128, 64, 16),
    (31, 128, 66, 17),
    (30, 100, 70, 32),
    // 256 atoms and up to 8 and 16,
    (37, 129, 33, 8),
    (37, 255, 64, 10),
    (63, 256, 64, 16),
    // 512 and up to 8 and 12.
    (37, 257, 65, 7),
    (130, 511, 64, 8),
    (129, 512, 63, 8),
    (65, 512, 128, 12),
    // Several warps a signal: 256 and up to 24 and 32, 512 and up to 16 and 20, 1024 and up to 8,
    // 12 and 16.
    (130, 200, 64, 22),
    (131, 256, 100, 32),
    (132, 400, 64, 16),
    (133, 512, 64, 18),
    (261, 1000, 64, 7),
    (262, 1024, 64, 12),
    (263, 1023, 80, 15),
    // One block a signal, directions in registers and shared memory: up to 256 atoms and 64 steps,
    (65, 250, 80, 33),
    (30, 256, 100, 64),
    // 512 and 1024,
    (134, 500, 90, 32),
    (65, 512, 80, 35),
    (40, 290, 110, 64),
    (65, 513, 64, 17),
    (67, 1024, 64, 18),
    (66, 1000, 90, 34),
    (40, 1000, 130, 40),
    // and 2048, by a block of twice as many warps or, for more steps, by a cluster;
    (130, 1025, 33, 12),
    (70, 2048, 96, 40),
    (60, 1500, 90, 44),
    // by a cluster, 4096 and 8192.
    (300, 2049, 30, 17),
    (200, 4096, 40, 19),
    (300, 4100, 24, 14),
    (600, 8192, 24, 18),
    // One block a signal, directions in shared memory,
    (9, 256, 300, 128),
    // and in global.
    (13, 1024, 300, 128),
    (20, 1030, 130, 65),
    // Rows of the Gram matrix as they are wanted.
    (3, 700, 31, 5),
    (2, 8192, 4096, 3),
    (5, 2100, 90, 41),
    // So many signals that all take a step together: residuals of up to 128 samples in shared
    // memory, and more.
    (4100, 1024, 64, 18),
    (700, 8200, 33, 5),
    (4100, 1100, 128, 66),
    (11_000, 300, 130, 65),
    (4100, 1030, 300, 70),
];

#[test]
fn every_form_chooses_the_atoms_of_the_reference() -> Result<()> {
    let devices = devices()?;
    for (m, n, p, s) in SIZES {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            for rule in [Rule::Omp, Rule::Ols] {
                let pursuit = Pursuit::new(s);
                // As many rows as take the reference a tenth of a second.
                let cost = n * p * s * if rule == Rule::Omp { 1 } else { 4 * s };
                if cost > if cfg!(feature = "cuda") { 500_000_000 } else { 50_000_000 } {
                    continue; // seconds of the reference for one row; on a CPU alone, a few tenths
                }
                let checked = (20_000_000 / cost).clamp(2, m.max(2)).min(m);
                let head = signals.narrow(0, 0, checked)?;
                let want = rule.reference(&head, &dictionary, &pursuit)?;
                for device in &devices {
                    let what = format!("{rule:?} {m} {n}x{p} s {s} {dtype:?} on {:?}", device.location());
                    let got = rule.run(&moved(&signals, device)?, &moved(&dictionary, device)?, &pursuit)?;
                    let got = SparseCodes {
                        indices: got.indices.narrow(0, 0, checked)?,
                        values: got.values.narrow(0, 0, checked)?,
                        count: got.count.narrow(0, 0, checked)?,
                        ..got
                    };
                    let others = assert_codes(&what, rule, &head, &dictionary, &got, &want)?;
                    assert!(others <= 1 + m / 100, "{what}: {others} signals took another way");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn supports_are_those_of_f64_as_often_as_plain_f32_has_them() -> Result<()> {
    // 20,000 signals: the paper's sizes. The twin on the CPU is held to the reference above and
    // serves as the oracle in f64.
    for (n, s) in [(128, 8), (256, 10), (512, 8)] {
        let (signals, dictionary) = problem(20_000, n, 64, DType::F32)?;
        let double = |x: &Tensor| x.to_dtype(DType::F64);
        for rule in [Rule::Omp, Rule::Ols] {
            let oracle = rule.run(&double(&signals)?, &double(&dictionary)?, &Pursuit::new(s))?;
            let oracle = oracle.indices.to_vec2::<u32>()?;
            let mut of_cpu = None;
            for device in devices()? {
                let (signals, dictionary) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
                let got = rule.run(&signals, &dictionary, &Pursuit::new(s))?.indices.to_vec2::<u32>()?;
                let other = got.iter().zip(&oracle).filter(|(got, want)| got != want).count();
                println!(
                    "{rule:?} n {n} s {s} on {:?}: {other} of 20,000 supports differ",
                    device.location()
                );
                // Two counts of rare events: three standard deviations of their difference, and a
                // few where both are near 0.
                let plain = *of_cpu.get_or_insert(other) as f64;
                assert!(
                    other as f64 <= plain + 3. * (2. * plain).sqrt() + 6. && other < 40,
                    "{rule:?} n {n} on {:?}: {other} of 20,000 supports differ, {plain} in plain f32",
                    device.location()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn signals_in_several_chunks_are_coded_as_alone() -> Result<()> {
    for device in devices()? {
        // Correlations of 1.2 and 4.9 GB, in the warps' form and in the blocks'; 2.5 GB of
        // directions of signals that take steps together.
        for (rule, n, s, few) in
            [(Rule::Omp, 512, 3, 1000), (Rule::Ols, 1030, 3, 1000), (Rule::Omp, 520, 45, 100_000)]
        {
            let m = 600_000;
            let y = normal((m, 4), &device, Philox::new(3, 1))?;
            let d = normal((n, 4), &device, Philox::new(3, 2))?;
            let all = rule.run(&y, &d, &Pursuit::new(s))?;
            for start in [0, 131_000, 450_000, m - few] {
                let alone = rule.run(&y.narrow(0, start, few)?, &d, &Pursuit::new(s))?;
                let what = format!("signals from {start} on, {n} atoms");
                for (all, alone) in [(&all.indices, &alone.indices), (&all.count, &alone.count)] {
                    let (all, alone) = (all.narrow(0, start, few)?, alone.clone());
                    assert_same_bits(&what, &all.to_dtype(DType::F32)?, &alone.to_dtype(DType::F32)?)?;
                }
                assert_same_bits(&what, &all.values.narrow(0, start, few)?, &alone.values)?;
            }
        }
    }
    Ok(())
}

#[test]
fn fewer_signals_at_a_time_are_coded_alike() -> Result<()> {
    // A size for each form that the whole would get, which chunks keep.
    let sizes = [
        (65, 128, 64, 16),
        (37, 255, 64, 10),
        (130, 1025, 33, 12),
        (300, 2049, 30, 17),
        (9, 256, 300, 128),
        (13, 1024, 300, 128),
        (3, 700, 31, 5),
        (4100, 1024, 64, 18),
    ];
    for device in devices()? {
        // The CPU's products round by the number of rows, which f64 hides from the choices.
        let dtype = if device.is_cpu() { DType::F64 } else { DType::F32 };
        for (m, n, p, s) in sizes {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            let (signals, dictionary) = (moved(&signals, &device)?, moved(&dictionary, &device)?);
            for rule in [Rule::Omp, Rule::Ols] {
                if device.is_cpu() && m * n * s > 10_000_000 {
                    continue; // seconds
                }
                let want = rule.run(&signals, &dictionary, &Pursuit::new(s))?;
                for chunk in [m.div_ceil(2), m.div_ceil(3) + 1, m + 1] {
                    let pursuit = Pursuit { chunk: Some(chunk), ..Pursuit::new(s) };
                    let got = rule.run(&signals, &dictionary, &pursuit)?;
                    let what = format!("{rule:?} {m} {n}x{p} s {s}, {chunk} at a time");
                    let indices = |codes: &SparseCodes| codes.indices.to_vec2::<u32>();
                    assert_eq!(indices(&got)?, indices(&want)?, "{what}");
                    if !device.is_cpu() {
                        assert_same_bits(&what, &got.values, &want.values)?;
                    }
                }
            }
        }
    }
    Ok(())
}
