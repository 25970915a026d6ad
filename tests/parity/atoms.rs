//! The ops of dictionary learning: CPU and GPU against the same references, and trainers that
//! agree.
use candle::{DType, Device, Result, Tensor};
use chandlery::FullBatchTrainer;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Init,
    OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, PursuitMethod, SparseCoder, UpdateRule, init,
};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    AtomLength, AtomUpdate, AtomUses, Bounds, FIGURE_PARTS, Pursuit, SparseCodes, StatisticsStep,
    atom_coherence, atom_coherence_, atom_coherence_reference, bomp, code_figures_, codes_statistics_,
    descend_atoms_, descend_atoms_reference, row_squares, update_atoms, update_atoms_reference,
};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Around a warp, a tile of 128 columns, the 16 warps of a block with four rows each, codes wider
/// than a warp, and lists longer than the 2048 entries that are summed by themselves, or the 16,384
/// of a cluster of blocks, which atoms of 1,024 uses get; pairwise different. One of them is too
/// wide for what descent keeps in shared memory.
const SHAPES: [[usize; 4]; 11] = [
    [5, 3, 2, 1],
    [70, 12, 31, 3],
    [301, 50, 33, 4],
    [1000, 20, 128, 5],
    [600, 70, 130, 6],
    [2500, 9, 64, 3],
    [90, 60, 300, 40],
    [60, 40, 1000, 5],
    [7001, 7, 20, 3],
    [3100, 6, 290, 4],
    [40_001, 5, 12, 2],
];

fn unit_rows(n: usize, p: usize, seed: u64, dtype: DType) -> Result<Tensor> {
    let d = normal((n, p), &CPU, Philox::new(seed, 0))?.to_dtype(DType::F64)?;
    d.broadcast_div(&d.sqr()?.sum_keepdim(1)?.sqrt()?)?.to_dtype(dtype)
}

/// Signals, dictionary and codes on the CPU; some signals are zero and have empty codes.
fn problem([m, n, p, s]: [usize; 4], dtype: DType) -> Result<(Tensor, Tensor, SparseCodes)> {
    let d = unit_rows(n, p, 1, dtype)?;
    let zero = Tensor::from_vec((0..m).map(|i| f32::from(i % 7 != 3)).collect(), (m, 1), &CPU)?;
    let y = normal((m, p), &CPU, Philox::new(2, 0))?.broadcast_mul(&zero)?.to_dtype(dtype)?;
    let codes = bomp(&y, &d, &Pursuit::new(s))?;
    Ok((y, d, codes))
}

fn to(codes: &SparseCodes, device: &Device) -> Result<SparseCodes> {
    Ok(SparseCodes {
        indices: codes.indices.to_device(device)?,
        values: codes.values.to_device(device)?,
        count: codes.count.to_device(device)?,
        n_atoms: codes.n_atoms,
    })
}

#[test]
fn lists_are_the_same_on_every_device() -> Result<()> {
    // One block (up to 16,384 places of 512 atoms) and tiles of 4096; many equal keys in a warp
    // (few atoms) and few (many); empty codes; more atoms than a digit holds.
    for [m, n, s] in [[1, 1, 1], [9, 2, 7], [500, 17, 5], [40_001, 3, 10], [60_000, 2100, 9], [7, 5000, 33]] {
        let words = |stream| (0..(m * s) as u64).map(move |e| Philox::new(3, stream).bits(e));
        let codes = SparseCodes {
            indices: Tensor::from_vec(words(0).map(|w| w % n as u32).collect::<Vec<_>>(), (m, s), &CPU)?,
            values: Tensor::zeros((m, s), DType::F32, &CPU)?,
            count: Tensor::from_vec(
                words(1).take(m).map(|w| w % (s as u32 + 1)).collect::<Vec<_>>(),
                m,
                &CPU,
            )?,
            n_atoms: n,
        };
        let want = AtomUses::of(&codes)?;
        for device in devices()? {
            let got = AtomUses::of(&to(&codes, &device)?)?;
            let read = |t: &Tensor| t.to_vec1::<u32>();
            assert!(
                read(got.offsets())? == read(want.offsets())?,
                "offsets of {m} × {s} over {n} on {device:?}"
            );
            assert!(
                read(got.entries())? == read(want.entries())?,
                "entries of {m} × {s} over {n} on {device:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn updates_are_the_equations_in_f64() -> Result<()> {
    for shape in SHAPES {
        let n = shape[1];
        for (group, power_steps, coherence_penalty, n_fixed) in [
            (1, 1, 0., 0),
            (1, 0, 0., 1),
            (3, 1, 0.5, 0),
            (n, 1, 0., 2),
            (n, 0, 2., 0),
            (1, 4, 0., 0),
            (5, 3, 0.1, 1),
        ] {
            // Without a tolerance, so that all make every step.
            let update = AtomUpdate { group, power_steps, tolerance: 0., n_fixed, coherence_penalty };
            for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 2e-8)] {
                let (y, d, codes) = problem(shape, dtype)?;
                let error = codes.residual(&y, &d)?;
                let (want_d, want_x) = update_atoms_reference(&d, &codes, &error, &update)?;
                for device in devices()? {
                    let what = |part| {
                        format!("{part} of {shape:?}, {update:?}, {dtype:?} on {:?}", device.location())
                    };
                    let (d, codes, error) =
                        (d.to_device(&device)?, to(&codes, &device)?, error.to_device(&device)?);
                    let uses = AtomUses::of(&codes)?;
                    let run = || update_atoms(&d, &codes, &uses, &error, &update);
                    let (got_d, got) = run()?;
                    // Sums over thousands of rows and a chain over atoms: some hundred roundings of
                    // numbers up to 10; f64 is compared in f32, which leaves half a unit in its
                    // last place.
                    assert_close(&what("atoms"), &got_d, &want_d, 0., 100. * eps)?;
                    assert_close(&what("coefficients"), &got.values, &want_x, 0., 500. * eps)?;
                    let (again_d, again) = run()?;
                    assert_same_bits(&what("atoms again"), &again_d, &got_d)?;
                    assert_same_bits(&what("coefficients again"), &again.values, &got.values)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn statistics_and_descent_are_the_dense_products() -> Result<()> {
    for shape in SHAPES {
        let [_, n, p, _] = shape;
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-7)] {
            let (y, d, codes) = problem(shape, dtype)?;
            let (x, y64) = (codes.to_dense()?.to_dtype(DType::F64)?, y.to_dtype(DType::F64)?);
            let (a, b) = (unit_rows(n, n, 6, dtype)?, unit_rows(n, p, 7, dtype)?);
            let faded = |t: &Tensor| t.to_dtype(DType::F64)? * 0.25;
            let want_a = (x.t()?.matmul(&x)? + faded(&a)?)?;
            let want_b = (x.t()?.matmul(&y64)? + faded(&b)?)?;
            let scale = want_a.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()? as f32;
            for device in devices()? {
                let what = |part| format!("{part} of {shape:?}, {dtype:?} on {:?}", device.location());
                let (a, b) = (a.copy()?.to_device(&device)?, b.copy()?.to_device(&device)?);
                let (y, codes, d) =
                    (y.to_device(&device)?, to(&codes, &device)?, d.copy()?.to_device(&device)?);
                let uses = AtomUses::of(&codes)?;
                let step = StatisticsStep { beta: 0.25, ..StatisticsStep::default() };
                codes_statistics_(&a, &b, &codes, &uses, &y, step)?;
                assert_close(&what("XᵀX"), &a, &want_a.to_dtype(dtype)?, 0., 10. * eps * scale)?;
                assert_close(&what("XᵀY"), &b, &want_b.to_dtype(dtype)?, 0., 30. * eps * scale)?;
                // From what this device has: those differ already.
                let faded = b.copy()?;
                codes_statistics_(&a, &faded, &codes, &uses, &y, StatisticsStep::default())?;
                for (n_fixed, length) in
                    [0, 2].into_iter().flat_map(|f| [AtomLength::One, AtomLength::AtMostOne].map(|l| (f, l)))
                {
                    let want = descend_atoms_reference(&d, &a, &b, n_fixed, length)?;
                    let again = d.copy()?;
                    descend_atoms_(&d, &a, &b, n_fixed, length)?;
                    assert_close(&what("descent"), &d, &want, 0., 300. * eps)?;
                    descend_atoms_(&again, &a, &b, n_fixed, length)?;
                    assert_same_bits(&what("descent again"), &again, &d)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn squares_and_coherence_are_those_of_candle() -> Result<()> {
    for (n, p) in [(1, 3), (7, 2), (90, 33), (300, 64), (33, 700)] {
        for dtype in [DType::F32, DType::F64] {
            let d = (unit_rows(n, p, 8, dtype)? * 3.)?;
            for device in devices()? {
                let what = |part| format!("{part} of {n} × {p}, {dtype:?} on {:?}", device.location());
                let d = d.to_device(&device)?;
                let want = d.to_device(&CPU)?.to_dtype(DType::F64)?.sqr()?.sum(1)?;
                assert_close(&what("squares"), &row_squares(&d)?, &want, 1e-6, 0.)?;
                let want = atom_coherence_reference(&d.to_device(&CPU)?)?;
                assert_close(&what("coherence"), &atom_coherence(&d)?, &want, 0., 1e-6)?;
            }
        }
    }
    Ok(())
}

#[test]
fn statistics_of_many_atoms_are_the_dense_products() -> Result<()> {
    // More columns than a block of the Gram matrix has room for (1536 in f32, 768 in f64), and two
    // tiles of features.
    let (m, n, p, s) = (40, 1700, 200, 3);
    let words = (0..(m * s) as u64).map(|e| Philox::new(5, 0).bits(e));
    for (dtype, eps) in [(DType::F32, 1e-5), (DType::F64, 1e-7)] {
        let codes = SparseCodes {
            indices: Tensor::from_vec(words.clone().map(|w| w % n as u32).collect::<Vec<_>>(), (m, s), &CPU)?,
            values: normal((m, s), &CPU, Philox::new(5, 1))?.to_dtype(dtype)?,
            count: Tensor::full(s as u32, m, &CPU)?,
            n_atoms: n,
        };
        let y = normal((m, p), &CPU, Philox::new(5, 2))?.to_dtype(dtype)?;
        let x = codes.to_dense()?;
        let (want_a, want_b) = (x.t()?.matmul(&x)?, x.t()?.matmul(&y)?);
        for device in devices()? {
            let (y, codes) = (y.to_device(&device)?, to(&codes, &device)?);
            let (a, b) = (Tensor::ones((n, n), dtype, &device)?, Tensor::ones((n, p), dtype, &device)?);
            codes_statistics_(&a, &b, &codes, &AtomUses::of(&codes)?, &y, StatisticsStep::default())?;
            assert_close(&format!("XᵀX, {dtype:?} on {:?}", device.location()), &a, &want_a, 0., eps)?;
            assert_close(&format!("XᵀY, {dtype:?} on {:?}", device.location()), &b, &want_b, 0., eps)?;
        }
    }
    Ok(())
}

#[test]
fn entries_of_a_code_that_name_one_atom_are_added_on_every_device() -> Result<()> {
    for (m, n, s) in [(5, 3, 4), (70, 6, 40), (3000, 2, 3)] {
        let words = (0..(m * s) as u64).map(|e| Philox::new(11, 0).bits(e));
        let codes = SparseCodes {
            indices: Tensor::from_vec(words.map(|w| w % n as u32).collect::<Vec<_>>(), (m, s), &CPU)?,
            values: normal((m, s), &CPU, Philox::new(11, 1))?.to_dtype(DType::F64)?,
            count: Tensor::full(s as u32, m, &CPU)?,
            n_atoms: n,
        };
        let y = normal((m, 7), &CPU, Philox::new(11, 2))?.to_dtype(DType::F64)?;
        let x = codes.to_dense()?;
        let (want_a, want_b) = (x.t()?.matmul(&x)?, x.t()?.matmul(&y)?);
        for device in devices()? {
            let (y, codes) = (y.to_device(&device)?, to(&codes, &device)?);
            let uses = AtomUses::of(&codes)?;
            let run = || -> Result<[Tensor; 2]> {
                let sums = [
                    Tensor::zeros((n, n), DType::F64, &device)?,
                    Tensor::zeros((n, 7), DType::F64, &device)?,
                ];
                codes_statistics_(&sums[0], &sums[1], &codes, &uses, &y, StatisticsStep::default())?;
                Ok(sums)
            };
            let ([a, b], [again_a, again_b]) = (run()?, run()?);
            let what = |part| format!("{part} of {m} × {s} over {n} on {:?}", device.location());
            // Compared in f32, which leaves half a unit in the last place of sums up to thousands.
            assert_close(&what("XᵀX"), &a, &want_a, 1e-6, 1e-6)?;
            assert_close(&what("XᵀY"), &b, &want_b, 1e-6, 1e-5)?;
            assert_same_bits(&what("XᵀX again"), &again_a, &a)?;
            assert_same_bits(&what("XᵀY again"), &again_b, &b)?;
        }
    }
    Ok(())
}

#[test]
fn figures_and_bounds_are_those_of_the_cpu() -> Result<()> {
    for shape in SHAPES {
        let n = shape[1];
        let (y, d, codes) = problem(shape, DType::F32)?;
        let error = codes.residual(&y, &d)?;
        let want = Tensor::zeros(2 * FIGURE_PARTS + n + 1, DType::F64, &CPU)?;
        let squares = code_figures_(&want, &error, &y, &AtomUses::of(&codes)?)?;
        for device in devices()? {
            let what = |part| format!("{part} of {shape:?} on {:?}", device.location());
            let (y, codes, error) = (y.to_device(&device)?, to(&codes, &device)?, error.to_device(&device)?);
            let uses = AtomUses::of(&codes)?;
            let all = Tensor::full(f64::NAN, 2 * FIGURE_PARTS + 2 * n + 1, &device)?;
            let figures = all.narrow(0, 0, 2 * FIGURE_PARTS + n + 1)?;
            let got = code_figures_(&figures, &error, &y, &uses)?;
            atom_coherence_(&all.narrow(0, 2 * FIGURE_PARTS + n + 1, n)?, &d.to_device(&device)?)?;
            assert_close(&what("figures"), &figures, &want, 1e-6, 1e-12)?;
            assert_close(&what("squares"), &got, &squares, 1e-6, 1e-12)?;
            assert_same_bits(&what("squares alone"), &got, &row_squares(&error)?)?;
            let read = all.to_vec1::<f64>()?;
            assert!(read.iter().all(|x| x.is_finite()), "every figure was written: {}", what("report"));
            // A bound that holds, one that does not, and squares that are no number.
            let parts = all.narrow(0, 0, 2 * FIGURE_PARTS)?;
            let largest = read[FIGURE_PARTS..2 * FIGURE_PARTS].iter().fold(0., |a: f64, &b| a.max(b));
            for (most_square, written) in [(largest, true), (largest * 0.99, false)] {
                let bounds = Bounds { figures: &parts, most_error: f64::MAX, most_square };
                assert_eq!(bounds.hold(&read), written);
                let (a, b) = (
                    Tensor::ones((n, n), DType::F32, &device)?,
                    Tensor::ones(d.dims(), DType::F32, &device)?,
                );
                let step = StatisticsStep { bounds: Some(bounds), ..StatisticsStep::default() };
                codes_statistics_(&a, &b, &codes, &uses, &y, step)?;
                let ones = a.flatten_all()?.to_vec1::<f32>()?.into_iter().chain(b.flatten_all()?.to_vec1()?);
                assert_eq!(ones.into_iter().any(|x| x != 1.), written, "{} of {most_square}", what("bounds"));
            }
        }
    }
    Ok(())
}

/// Signals with something to learn: two waves of random phase each, and noise.
fn waves(m: usize, p: usize) -> Result<Tensor> {
    let draws = normal((m, 4), &CPU, Philox::new(9, 0))?.to_vec2::<f32>()?;
    let rows: Vec<f32> = draws
        .iter()
        .flat_map(|w| {
            let (a, b) = ((w[0].abs() * 3.).floor() + 1., (w[1].abs() * 5.).floor() + 2.);
            (0..p).map(move |c| {
                let t = c as f32 / p as f32 * std::f32::consts::TAU;
                w[2] * (a * t + w[0].signum()).sin() + w[3] * (b * t).cos()
            })
        })
        .collect();
    Tensor::from_vec(rows, (m, p), &CPU)? + (normal((m, p), &CPU, Philox::new(9, 1))? * 0.1)?
}

fn coder() -> SparseCoder {
    SparseCoder::new(PursuitMethod::Omp, 4)
}

#[test]
fn training_gives_the_same_error_on_every_device_and_the_same_bits_again() -> Result<()> {
    let y = waves(3000, 36)?;
    for rule in [UpdateRule::Ksvd, UpdateRule::AkSvd, UpdateRule::Sgk, UpdateRule::Nsgk, UpdateRule::Mod] {
        for group in [1, usize::MAX] {
            let mut of_devices = Vec::new();
            for device in devices()? {
                let y = y.to_device(&device)?;
                let run = || -> Result<(f64, f64, Tensor)> {
                    let atoms = init(&Init::RandomSignals, 60, &y, Philox::new(10, 0))?;
                    let dictionary = Dictionary::from_tensor(DictionaryConfig::new(60, 36, 4), atoms)?;
                    let config = DictionaryTrainConfig {
                        rule,
                        group,
                        iterations: 15,
                        coder: Some(coder()),
                        ..DictionaryTrainConfig::default()
                    };
                    let mut trainer = DictionaryTrainer::new(dictionary, &y, config, Philox::new(10, 1))?;
                    let begin = trainer.last().rmse;
                    trainer.fit()?;
                    Ok((begin, trainer.best_rmse(), trainer.current().atoms().clone()))
                };
                let (begin, end, atoms) = run()?;
                assert!(end < 0.8 * begin, "{rule:?} on {device:?}: {begin} to {end}");
                assert_same_bits(&format!("{rule:?} again on {device:?}"), &run()?.2, &atoms)?;
                of_devices.push((begin, end));
            }
            let (begin, end) = of_devices[0];
            for (other_begin, other_end) in of_devices {
                assert!(
                    (other_begin / begin - 1.).abs() < 1e-4,
                    "{rule:?}: starts {begin} and {other_begin}"
                );
                // One atom chosen otherwise, on account of a rounding, and paths part; what they
                // lead to is alike.
                assert!((other_end / end - 1.).abs() < 0.03, "{rule:?}: ends {end} and {other_end}");
            }
        }
    }
    Ok(())
}

#[test]
fn first_iterations_in_f64_are_the_same_to_a_rounding() -> Result<()> {
    let y = waves(3000, 36)?.to_dtype(DType::F64)?;
    let atoms = init(&Init::RandomSignals, 60, &y, Philox::new(10, 0))?;
    let all = [UpdateRule::Ksvd, UpdateRule::AkSvd, UpdateRule::Sgk, UpdateRule::Nsgk];
    let nonnegative = [(UpdateRule::Sgk, true, 1), (UpdateRule::Nsgk, true, 7)];
    for (rule, nonnegative_atoms, group) in
        all.into_iter().map(|rule| (rule, false, usize::MAX)).chain(nonnegative)
    {
        let mut of_devices = Vec::new();
        for device in devices()? {
            let config = DictionaryConfig { nonnegative_atoms, ..DictionaryConfig::new(60, 36, 4) };
            let dictionary = Dictionary::from_tensor(config, atoms.to_device(&device)?)?;
            let coder = Some(coder());
            let config = DictionaryTrainConfig { rule, group, coder, ..DictionaryTrainConfig::default() };
            let mut trainer =
                DictionaryTrainer::new(dictionary, &y.to_device(&device)?, config, Philox::new(10, 1))?;
            let errors = (0..4)
                .map(|_| Ok(trainer.step()?.map_or(f64::NAN, |made| made.rmse)))
                .collect::<Result<Vec<f64>>>()?;
            of_devices.push(errors);
        }
        for errors in &of_devices {
            for (got, want) in errors.iter().zip(&of_devices[0]) {
                assert!((got / want - 1.).abs() < 1e-7, "{rule:?}: {of_devices:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn online_training_gives_the_same_error_on_every_device() -> Result<()> {
    let y = waves(3000, 36)?;
    let mut ends = Vec::new();
    for device in devices()? {
        let y = y.to_device(&device)?;
        let atoms = init(&Init::RandomSignals, 60, &y, Philox::new(10, 0))?;
        let dictionary = Dictionary::from_tensor(DictionaryConfig::new(60, 36, 4), atoms)?;
        let config =
            OnlineDictionaryTrainConfig { coder: Some(coder()), ..OnlineDictionaryTrainConfig::default() };
        let mut trainer = OnlineDictionaryTrainer::new(dictionary, config, Philox::new(10, 1))?;
        let mut last = Vec::new();
        for batch in 0..100 {
            let iteration = trainer.partial_fit(&y.narrow(0, batch % 10 * 300, 300)?)?;
            last.push(iteration.rmse);
        }
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        assert!(mean(&last[90..]) < 0.8 * last[0], "on {device:?}: {} to {}", last[0], mean(&last[90..]));
        ends.push(mean(&last[90..]));
    }
    for end in &ends {
        assert!((end / ends[0] - 1.).abs() < 0.03, "{ends:?}");
    }
    Ok(())
}

#[test]
fn a_batch_that_does_not_fit_leaves_the_trainer_and_a_longer_one_changes_its_unit_on_every_device()
-> Result<()> {
    let y = waves(900, 36)?;
    for device in devices()? {
        let y = y.to_device(&device)?;
        let run = |unit: f64| -> Result<(Vec<f64>, Tensor)> {
            let atoms = init(&Init::RandomSignals, 60, &y, Philox::new(10, 0))?;
            let dictionary = Dictionary::from_tensor(DictionaryConfig::new(60, 36, 4), atoms)?;
            let config = OnlineDictionaryTrainConfig {
                coder: Some(coder()),
                ..OnlineDictionaryTrainConfig::default()
            };
            let mut trainer = OnlineDictionaryTrainer::new(dictionary, config, Philox::new(10, 1))?;
            let mut errors = Vec::new();
            for batch in 0..3 {
                // The first batch is short by itself; what follows is in the unit of `unit`.
                let rows = y.narrow(0, batch * 300, 300)?;
                errors.push(trainer.partial_fit(&(rows * if batch == 0 { 1. } else { unit })?)?.rmse);
                let bad = (y.narrow(0, 0, 20)? * f64::NAN)?;
                assert!(trainer.partial_fit(&bad).is_err(), "a NaN is told on {device:?}");
            }
            Ok((errors, trainer.dictionary().atoms().clone()))
        };
        // 2^30 times as long: the unit of the statistics changes, and no atom is NaN.
        let (errors, atoms) = run(2f64.powi(30))?;
        assert!(errors.iter().all(|e| e.is_finite()) && errors[1] > 1e6, "{errors:?} on {device:?}");
        let atoms = atoms.to_device(&CPU)?.to_dtype(DType::F64)?;
        let norms = atoms.sqr()?.sum(1)?.to_vec1::<f64>()?;
        assert!(norms.iter().all(|norm| (norm - 1.).abs() < 1e-5), "{norms:?} on {device:?}");
        let (errors, again) = (run(1.)?, run(1.)?);
        assert_eq!(errors.0, again.0, "on {device:?}");
        assert_same_bits(&format!("atoms on {device:?}"), &errors.1, &again.1)?;
    }
    Ok(())
}
