//! When a pursuit ends, and what it never does.
use super::{Rule, assert_codes, problem, rows};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes, bomp, ols};
use chandlery_ops::core::Replay;
use chandlery_tests::{assert_same_bits, devices};

/// The signals this many times over: enough of them that a GPU takes them step by step.
const OFTEN: usize = 300;

/// The codes of the first `m` signals, once all repetitions of them have been seen to have the
/// same.
fn of_first(what: &str, codes: &SparseCodes, m: usize) -> Result<SparseCodes> {
    let times = codes.count.dim(0)? / m;
    let first = |x: &Tensor| -> Result<Tensor> {
        let first = x.narrow(0, 0, m)?;
        let again = if x.rank() == 2 { first.repeat((times, 1))? } else { first.repeat(times)? };
        assert_same_bits(what, &x.to_dtype(DType::F32)?, &again.to_dtype(DType::F32)?)?;
        Ok(first)
    };
    Ok(SparseCodes {
        indices: first(&codes.indices)?,
        values: first(&codes.values)?,
        count: first(&codes.count)?,
        n_atoms: codes.n_atoms,
    })
}

#[test]
fn error_targets_end_a_pursuit_where_the_reference_ends() -> Result<()> {
    // Each form: registers, shared, global, rows made, by steps.
    for (m, n, p, s, times) in [
        (41, 100, 30, 20, 1),
        (40, 300, 48, 12, 1),
        (33, 600, 40, 20, 1),
        (64, 3000, 40, 30, 1),
        (3, 900, 40, 12, 1),
        (43, 300, 48, 34, OFTEN),
        (41, 600, 70, 40, OFTEN),
    ] {
        let (signals, dictionary) = problem(m, n, p, DType::F32)?;
        let each: Vec<f32> = (0..m).map(|i| (p as f32).sqrt() * (i as f32 + 0.5) / m as f32).collect();
        for device in devices()? {
            let d = dictionary.to_device(&device)?;
            let y = signals.repeat((times, 1))?.to_device(&device)?;
            for which in 0..3 {
                let target = |device: &Device, times: usize| -> Result<ErrorTarget> {
                    Ok(match which {
                        0 => ErrorTarget::Absolute((p as f64).sqrt() * 0.4),
                        1 => ErrorTarget::Relative(0.3),
                        _ => ErrorTarget::PerSignal(Tensor::new(each.repeat(times).as_slice(), device)?),
                    })
                };
                let mut pursuit = Pursuit { error: Some(target(&device, times)?), ..Pursuit::new(s) };
                for rule in [Rule::Omp, Rule::Ols] {
                    let on_cpu = Pursuit { error: Some(target(&Device::Cpu, 1)?), ..Pursuit::new(s) };
                    let want = rule.reference(&signals, &dictionary, &on_cpu)?;
                    let what =
                        format!("{rule:?} to {:?}, {n} atoms on {:?}", on_cpu.error, device.location());
                    let got = of_first(&what, &rule.run(&y, &d, &pursuit)?, m)?;
                    assert_codes(&what, rule, &signals, &dictionary, &got, &want)?;
                    let count = want.count.to_vec1::<u32>()?;
                    let (few, most) = (count.iter().min(), count.iter().max());
                    assert!(
                        m < 10 || few != most,
                        "{what}: every pursuit ends after {few:?} atoms, which shows nothing"
                    );
                }
                // A looser target takes no more atoms, and one beyond the signal none.
                pursuit.error = Some(ErrorTarget::Relative(1.));
                assert_eq!(bomp(&y, &d, &pursuit)?.count.to_vec1::<u32>()?, vec![0; m * times]);
            }
        }
    }
    Ok(())
}

/// Dictionaries of each form: padded with copies of the last atom, which is never better than the
/// first of them.
fn padded(atoms: &[[f32; 4]], n: usize, device: &Device) -> Result<Tensor> {
    let rows: Vec<f32> = (0..n).flat_map(|j| atoms[j.min(atoms.len() - 1)]).collect();
    Tensor::from_vec(rows, (n, 4), device)
}

#[test]
fn ties_copies_and_zeros_are_treated_alike_in_every_form() -> Result<()> {
    let atoms = [[0., 0., 0., 0.], [0., 2., 0., 0.], [0., -1., 0., 0.], [0.5, 0., 0., 0.], [3., 0., 0., 0.]];
    for device in devices()? {
        for (n, s) in [(5, 5), (200, 12), (500, 8), (600, 9), (1500, 100)] {
            let d = padded(&atoms, n, &device)?;
            // Level scores; nothing; only what no atom has; one atom.
            let y = [
                [4f32, 4., 0., 0.],
                [0., 0., 0., 0.],
                [0., 0., 1., 1.],
                [0., -6., 1e-3, 0.],
                [-7., 0., 0., 0.],
            ];
            let many = 1 + n / 5; // enough that the Gram matrix is made, once few, and once enough to go step by step
            for repeat in [1, many, 2000] {
                let y = Tensor::from_vec(y.repeat(repeat).concat(), (5 * repeat, 4), &device)?;
                for (name, codes) in
                    [("bomp", bomp(&y, &d, &Pursuit::new(s))?), ("ols", ols(&y, &d, &Pursuit::new(s))?)]
                {
                    let what = format!("{name}, {n} atoms, s {s} on {:?}", device.location());
                    for got in rows(&codes)?.chunks(5) {
                        assert_eq!(got[0], [(1, 2.), (3, 8.)], "{what}: the lowest of level atoms");
                        assert_eq!(got[1], [], "{what}: a signal of zeros");
                        assert_eq!(got[2], [], "{what}: a signal orthogonal to every atom");
                        assert_eq!(got[3], [(1, -3.)], "{what}: copies of a chosen atom");
                        assert_eq!(got[4], [(3, -14.)], "{what}: a shorter atom of the same direction");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn no_atom_is_chosen_twice_and_dependent_ones_end_a_pursuit() -> Result<()> {
    // More steps than samples: rounding is all that is left after p of them.
    for device in devices()? {
        for (m, n, p, s, times) in [
            (200, 100, 6, 32, 1),
            (200, 200, 9, 16, 1),
            (200, 600, 12, 40, 1),
            (200, 2000, 20, 60, 1),
            (60, 300, 12, 40, OFTEN),
            (50, 1000, 40, 60, OFTEN),
        ] {
            let (signals, dictionary) = problem(m, n, p, DType::F32)?;
            let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
            for rule in [Rule::Omp, Rule::Ols] {
                let what = format!("{rule:?} {n}x{p} on {:?}", device.location());
                let codes = of_first(&what, &rule.run(&y.repeat((times, 1))?, &d, &Pursuit::new(s))?, m)?;
                let norm = |x: Tensor| x.sqr()?.sum(1)?.sqrt()?.to_vec1::<f32>();
                let (left, size) = (norm(codes.residual(&y, &d)?)?, norm(y.clone())?);
                for (row, code) in rows(&codes)?.iter().enumerate() {
                    // The last atoms all but depend on those before: what they stand for is known
                    // to a few √eps.
                    let share = left[row] / size[row];
                    assert!(share < 6e-3, "{what}, row {row}: {share} of the signal is left after all atoms");
                    let mut atoms: Vec<_> = code.iter().map(|e| e.0).collect();
                    atoms.sort_unstable();
                    atoms.dedup();
                    assert_eq!(atoms.len(), code.len(), "{what}: an atom twice in {code:?}");
                    // One or two more than there are dimensions pass where the last of them hardly
                    // stood out from rounding.
                    assert!(code.len() <= p + 2, "{what}, row {row}: {} independent atoms", code.len());
                }
            }
        }
    }
    Ok(())
}

type Op = fn(&Tensor, &Tensor, &Pursuit) -> Result<SparseCodes>;

#[test]
fn what_is_not_finite_is_refused_on_every_device() -> Result<()> {
    for device in devices()? {
        for (m, n, s) in [(64, 100, 4), (64, 600, 9), (2, 600, 9), (700, 3000, 30), (9000, 600, 20)] {
            let (signals, dictionary) = problem(m, n, 7, DType::F32)?;
            let spoilt = |x: &Tensor, value: f32| -> Result<Tensor> {
                let (rows, p) = x.dims2()?;
                let mut data = x.flatten_all()?.to_vec1::<f32>()?;
                data[rows * p - 2] = value;
                Tensor::from_vec(data, (rows, p), &device)
            };
            let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for (what, result) in [
                    ("signals", bomp(&spoilt(&signals, value)?, &d, &Pursuit::new(s))),
                    ("signals", ols(&spoilt(&signals, value)?, &d, &Pursuit::new(s))),
                    ("dictionary", bomp(&y, &spoilt(&dictionary, value)?, &Pursuit::new(s))),
                ] {
                    let error = result.expect_err("accepted").to_string();
                    let must = format!("{what} must be finite, got NaN");
                    assert!(error.contains(&must), "{error:?} does not say {must:?}");
                }
            }
            for bad in [f32::NAN, f32::INFINITY, -2.] {
                let mut each = vec![1f32; m];
                each[m / 2] = bad;
                for (op, name) in [(bomp as Op, "bomp"), (ols as Op, "ols")] {
                    let error = Some(ErrorTarget::PerSignal(Tensor::new(each.as_slice(), &device)?));
                    let result = op(&y, &d, &Pursuit { error, ..Pursuit::new(s) });
                    let error = result.expect_err("accepted").to_string();
                    let must = format!("{name}: error targets must be finite numbers of at least 0, got");
                    assert!(error.contains(&must), "{error:?} does not say {must:?}");
                }
            }
            bomp(&y, &d, &Pursuit::new(s))?; // and the next call is as if nothing had been
        }
    }
    Ok(())
}

#[test]
fn calls_of_several_threads_refuse_their_own_numbers_only() -> Result<()> {
    const CALLS: usize = 50;
    for device in devices()? {
        let (signals, dictionary) = problem(64, 100, 7, DType::F32)?;
        let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
        let bad = (&y * f64::NAN)?;
        let want = bomp(&y, &d, &Pursuit::new(4))?;
        let call = |is_bad: bool| -> Result<()> {
            for _ in 0..CALLS {
                let got = bomp(if is_bad { &bad } else { &y }, &d, &Pursuit::new(4));
                match got {
                    Ok(got) if !is_bad => {
                        assert_same_bits("beside other threads", &got.values, &want.values)?
                    }
                    Ok(_) => panic!("NaN was accepted beside other threads"),
                    Err(error) => {
                        assert!(is_bad, "finite signals were refused beside other threads: {error}")
                    }
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..4)
                .map(|i| {
                    let call = &call;
                    scope.spawn(move || call(i % 2 == 1))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
    }
    Ok(())
}

#[test]
fn a_pursuit_within_a_recorded_step_is_refused() -> Result<()> {
    for device in devices()? {
        let (signals, dictionary) = problem(64, 100, 7, DType::F32)?;
        let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
        let again = (y.clone(), d.clone());
        let mut step = Replay::new(&device, move || bomp(&y, &d, &Pursuit::new(4)).map(drop));
        // The third run is the first to be recorded.
        step.run()?;
        step.run()?;
        match (device.is_cuda(), step.run()) {
            (true, Err(error)) => {
                let must = "bomp: cannot be part of a recorded step";
                assert!(error.to_string().contains(must), "{error:?} does not say {must:?}");
            }
            (is_cuda, run) => assert!(!is_cuda && run.is_ok(), "{run:?} on {:?}", device.location()),
        }
        drop(step);
        bomp(&again.0, &again.1, &Pursuit::new(4))?; // and the next call is as if nothing had been
    }
    Ok(())
}

#[test]
fn codes_of_a_scaled_signal_are_scaled_codes() -> Result<()> {
    // Squares of such numbers are beyond their type. By a power of two no bit of a mantissa
    // changes.
    for device in devices()? {
        for (m, n, p, s) in
            [(33, 100, 24, 6), (40, 600, 30, 12), (60, 600, 30, 18), (3, 1700, 30, 5), (7000, 600, 30, 18)]
        {
            for (rule, dtype, power) in
                [Rule::Omp, Rule::Ols].into_iter().flat_map(|r| [(r, DType::F32, 80), (r, DType::F64, 700)])
            {
                if dtype == DType::F64 && m > 1000 {
                    continue; // seconds of the GPU, and the form of a smaller number
                }
                let (signals, dictionary) = problem(m, n, p, dtype)?;
                let d = dictionary.to_device(&device)?;
                let pursuit = Pursuit { error: Some(ErrorTarget::Relative(0.3)), ..Pursuit::new(s) };
                let plain = rule.run(&signals.to_device(&device)?, &d, &pursuit)?;
                for scale in [2f64.powi(-power), 2f64.powi(power)] {
                    let scaled = rule.run(&(&signals * scale)?.to_device(&device)?, &d, &pursuit)?;
                    let what = format!("{rule:?} {n} atoms, signals by {scale:e} on {:?}", device.location());
                    assert_same_bits(&what, &(scaled.values / scale)?, &plain.values)?;
                    for (scaled, plain) in [(scaled.indices, &plain.indices), (scaled.count, &plain.count)] {
                        assert_same_bits(&what, &scaled.to_dtype(DType::F32)?, &plain.to_dtype(DType::F32)?)?;
                    }
                }
            }
        }
    }
    Ok(())
}
