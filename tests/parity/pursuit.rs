//! The pursuits: the same atoms as a textbook's in f64, whatever form of the kernel a size gets, on every device.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    ErrorTarget, Philox, Pursuit, SparseCodes, bomp, bomp_masked, bomp_masked_reference, normal, ols,
    ols_reference, omp_reference, uniform,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};

/// Two candidates may change places where their scores are this close, in units of the rounding of the type relative to
/// `‖y‖`: a correlation is a sum of up to 4096 products and of as many steps as there are atoms, each rounded once.
const GAP: f64 = 64.;
/// A coefficient may differ by this many roundings of `‖y‖ / ‖d‖`: those of its correlation times the condition of the chosen
/// atoms, which for random ones of twice as many samples as atoms is below 10.
const VALUE: f64 = 512.;
/// `‖y − x D‖` does not depend on the condition.
const FIT: f64 = 64.;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Omp,
    Ols,
}

impl Rule {
    fn run(self, signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
        match self {
            Rule::Omp => bomp(signals, dictionary, pursuit),
            Rule::Ols => ols(signals, dictionary, pursuit),
        }
    }

    fn reference(self, signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
        match self {
            Rule::Omp => omp_reference(signals, dictionary, pursuit),
            Rule::Ols => ols_reference(signals, dictionary, pursuit),
        }
    }
}

fn eps(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// Random signals and atoms whose norms spread over a decade, as a view that starts inside a larger tensor.
fn problem(m: usize, n: usize, p: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
    let seed = (m * 31 + n * 7 + p) as u64;
    let signals = normal((m + 1, p), &Device::Cpu, Philox::new(seed, 0))?;
    let atoms = normal((n, p), &Device::Cpu, Philox::new(seed, 1))?;
    let lengths = uniform((n, 1), &Device::Cpu, Philox::new(seed, 2))?.affine(2., 0.2)?;
    Ok((signals.to_dtype(dtype)?.narrow(0, 1, m)?, atoms.broadcast_mul(&lengths)?.to_dtype(dtype)?))
}

/// The same view on another device.
fn moved(x: &Tensor, device: &Device) -> Result<Tensor> {
    let padded = Tensor::cat(&[&x.narrow(0, 0, 1)?, x], 0)?.to_device(device)?;
    padded.narrow(0, 1, x.dim(0)?)
}

/// Codes as rows of `(atom, coefficient)`.
fn rows(codes: &SparseCodes) -> Result<Vec<Vec<(usize, f64)>>> {
    let indices = codes.indices.to_vec2::<u32>()?;
    let values = codes.values.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let count = codes.count.to_vec1::<u32>()?;
    let mut out = vec![];
    for ((indices, values), count) in indices.iter().zip(&values).zip(count) {
        let entries: Vec<_> = indices.iter().map(|&i| i as usize).zip(values.iter().copied()).collect();
        let (code, padding) = entries.split_at(count as usize);
        assert!(padding.iter().all(|&entry| entry == (0, 0.)), "padding is not empty: {padding:?}");
        out.push(code.to_vec());
    }
    Ok(out)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What an orthonormal basis leaves of a vector; twice, so that it is orthogonal to rounding.
fn left_of(x: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut left = x.to_vec();
    for q in basis.iter().chain(basis) {
        let along = dot(q, &left);
        left.iter_mut().zip(q).for_each(|(l, q)| *l -= along * q);
    }
    left
}

/// The score of an atom once those of `chosen` are taken.
fn score(rule: Rule, y: &[f64], atoms: &[Vec<f64>], chosen: &[usize], atom: usize) -> f64 {
    let mut basis: Vec<Vec<f64>> = vec![];
    for &i in chosen {
        let left = left_of(&atoms[i], &basis);
        let norm = dot(&left, &left).sqrt();
        basis.push(left.iter().map(|l| l / norm).collect());
    }
    let left = if rule == Rule::Omp { atoms[atom].clone() } else { left_of(&atoms[atom], &basis) };
    dot(&left_of(y, &basis), &atoms[atom]).abs() / dot(&left, &left).sqrt()
}

/// Panics unless `got` names the atoms of `want`, or others where their scores are level, with the coefficients of `want`.
/// Returns the number of signals that took another way.
#[track_caller]
fn assert_codes(
    what: &str,
    rule: Rule,
    signals: &Tensor,
    dictionary: &Tensor,
    got: &SparseCodes,
    want: &SparseCodes,
) -> Result<usize> {
    let to_f64 = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (signals, atoms, eps) = (to_f64(signals)?, to_f64(dictionary)?, eps(got.values.dtype()));
    let norms: Vec<f64> = atoms.iter().map(|d| dot(d, d).sqrt()).collect();
    let mut others = 0;
    for (row, (got, want)) in rows(got)?.iter().zip(&rows(want)?).enumerate() {
        let y = &signals[row];
        let size = dot(y, y).sqrt();
        match (0..got.len().max(want.len())).find(|&k| got.get(k).map(|e| e.0) != want.get(k).map(|e| e.0)) {
            Some(k) => {
                others += 1;
                let (Some(g), Some(w)) = (got.get(k), want.get(k)) else {
                    panic!("{what}, row {row}: {} atoms, want {}", got.len(), want.len())
                };
                let chosen: Vec<usize> = want[..k].iter().map(|e| e.0).collect();
                let scores = [w.0, g.0].map(|atom| score(rule, y, &atoms, &chosen, atom));
                let gap = (scores[0] - scores[1]) / (eps * size);
                assert!(
                    gap.abs() <= GAP && !chosen.contains(&g.0),
                    "{what}, row {row}, step {k}: atom {} of score {}, want {} of {}: {gap:.1} roundings apart",
                    g.0,
                    scores[1],
                    w.0,
                    scores[0]
                );
            }
            None => {
                for (g, w) in got.iter().zip(want) {
                    let error = (g.1 - w.1).abs() * norms[g.0] / (eps * size);
                    assert!(
                        error <= VALUE,
                        "{what}, row {row}: {g:?}, want {w:?}: {error:.1} roundings apart"
                    );
                }
            }
        }
        let missed = |code: &[(usize, f64)]| {
            let mut residual = y.clone();
            for &(atom, x) in code {
                residual.iter_mut().zip(&atoms[atom]).for_each(|(r, d)| *r -= x * d);
            }
            dot(&residual, &residual).sqrt()
        };
        if others == 0 {
            let error = (missed(got) - missed(want)).abs() / (eps * size);
            assert!(error <= FIT, "{what}, row {row}: the residuals' norms are {error:.1} roundings apart");
        }
    }
    Ok(others)
}

/// Signals, atoms, samples, steps. By the form of the kernel for f32, each below, at and above the sizes that it ends at.
const SIZES: [(usize, usize, usize, usize); 28] = [
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
    // One block a signal, in shared memory,
    (65, 256, 64, 17),
    (65, 512, 64, 13),
    (129, 513, 33, 5),
    (67, 1024, 64, 16),
    (40, 1000, 130, 40),
    (9, 256, 300, 128),
    // and in global.
    (70, 2048, 96, 40),
    (13, 1024, 300, 128),
    (300, 4100, 24, 14),
    // Rows of the Gram matrix as they are wanted.
    (3, 700, 31, 5),
    (2, 8192, 4096, 3),
    (5, 2100, 90, 41),
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
                if cost > 500_000_000 {
                    continue; // seconds of the reference for one row
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
    // 20,000 signals: the paper's sizes. The twin on the CPU is held to the reference above and serves as the oracle in f64.
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
                // Two counts of rare events: three standard deviations of their difference, and a few where both are near 0.
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
fn error_targets_end_a_pursuit_where_the_reference_ends() -> Result<()> {
    // Each form: registers, shared, global, rows made.
    for (m, n, p, s) in
        [(41, 100, 30, 20), (40, 300, 48, 12), (33, 600, 40, 20), (64, 3000, 40, 30), (3, 900, 40, 12)]
    {
        let (signals, dictionary) = problem(m, n, p, DType::F32)?;
        let each: Vec<f32> = (0..m).map(|i| (p as f32).sqrt() * (i as f32 + 0.5) / m as f32).collect();
        for device in devices()? {
            let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
            for which in 0..3 {
                let target = |device: &Device| -> Result<ErrorTarget> {
                    Ok(match which {
                        0 => ErrorTarget::Absolute((p as f64).sqrt() * 0.4),
                        1 => ErrorTarget::Relative(0.3),
                        _ => ErrorTarget::PerSignal(Tensor::new(each.as_slice(), device)?),
                    })
                };
                let mut pursuit = Pursuit { error: Some(target(&device)?), ..Pursuit::new(s) };
                for rule in [Rule::Omp, Rule::Ols] {
                    let got = rule.run(&y, &d, &pursuit)?;
                    let on_cpu = Pursuit { error: Some(target(&Device::Cpu)?), ..Pursuit::new(s) };
                    let want = rule.reference(&signals, &dictionary, &on_cpu)?;
                    let what =
                        format!("{rule:?} to {:?}, {n} atoms on {:?}", on_cpu.error, device.location());
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
                assert_eq!(bomp(&y, &d, &pursuit)?.count.to_vec1::<u32>()?, vec![0; m]);
            }
        }
    }
    Ok(())
}

#[test]
fn nonnegative_codes_are_those_of_the_reference() -> Result<()> {
    for (m, n, p, s) in
        [(1, 1, 1, 1), (40, 60, 24, 8), (41, 300, 32, 12), (20, 900, 64, 40), (4, 1100, 30, 6)]
    {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            // Atoms in one half of the space are coherent, and a new one turns coefficients of others negative.
            let dictionary = dictionary.broadcast_add(&dictionary.abs()?.mean_keepdim(1)?)?;
            for device in devices()? {
                let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
                for rule in [Rule::Omp, Rule::Ols] {
                    let pursuit = Pursuit { nonnegative: true, ..Pursuit::new(s) };
                    let got = rule.run(&y, &d, &pursuit)?;
                    let want = rule.reference(&signals, &dictionary, &pursuit)?;
                    let what = format!("{rule:?} x >= 0 {n}x{p} s {s} {dtype:?} on {:?}", device.location());
                    assert_nonnegative(&what, &signals, &dictionary, &got, &want)?;
                }
            }
        }
    }
    Ok(())
}

/// The codes are at least 0 and reach the residual of the reference, with its atoms in nearly all rows.
#[track_caller]
fn assert_nonnegative(
    what: &str,
    signals: &Tensor,
    dictionary: &Tensor,
    got: &SparseCodes,
    want: &SparseCodes,
) -> Result<()> {
    let dtype = got.values.dtype();
    let cpu = |codes: &SparseCodes| -> Result<SparseCodes> {
        let to = |x: &Tensor| x.to_device(&Device::Cpu);
        Ok(SparseCodes {
            indices: to(&codes.indices)?,
            values: to(&codes.values)?.to_dtype(DType::F64)?,
            count: to(&codes.count)?,
            n_atoms: codes.n_atoms,
        })
    };
    let (got, want) = (cpu(got)?, cpu(want)?);
    let (signals, dictionary) = (signals.to_dtype(DType::F64)?, dictionary.to_dtype(DType::F64)?);
    let left = |codes: &SparseCodes| codes.residual(&signals, &dictionary)?.sqr()?.sum(1)?.to_vec1::<f64>();
    let (size, got_left, want_left) = (signals.sqr()?.sum(1)?.to_vec1::<f64>()?, left(&got)?, left(&want)?);
    let (got, want) = (rows(&got)?, rows(&want)?);
    let mut others = 0;
    for row in 0..got.len() {
        assert!(got[row].iter().all(|e| e.1 > 0.), "{what}, row {row}: {:?}", got[row]);
        let atoms = |code: &[(usize, f64)]| code.iter().map(|e| e.0).collect::<Vec<_>>();
        if atoms(&got[row]) != atoms(&want[row]) {
            others += 1;
            continue;
        }
        let error = (got_left[row].sqrt() - want_left[row].sqrt()).abs() / (eps(dtype) * size[row].sqrt());
        assert!(error <= VALUE, "{what}, row {row}: the residuals' norms are {error:.1} roundings apart");
    }
    // Coefficients that are 0 but for rounding may be there or not.
    assert!(others <= 1 + got.len() / 20, "{what}: {others} of {} rows have other atoms", got.len());
    Ok(())
}

#[test]
fn masked_pursuits_are_those_of_the_observed_samples() -> Result<()> {
    for (m, n, p, s) in [(1, 2, 3, 2), (40, 60, 24, 5), (33, 300, 64, 8), (20, 1100, 96, 48)] {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            let mask = uniform((m, p), &Device::Cpu, Philox::new(5, m as u64))?.lt(0.8)?;
            // What is missing must not be looked at; nor does a signal without any sample have a code.
            let nothing = mask.zeros_like()?.narrow(0, 0, 1)?;
            let mask = if m > 1 { Tensor::cat(&[&nothing, &mask.narrow(0, 1, m - 1)?], 0)? } else { mask };
            let missing = Tensor::full(f64::NAN, (m, p), &Device::Cpu)?.to_dtype(dtype)?;
            let seen = mask.where_cond(&signals, &missing)?;
            let zeroed = mask.where_cond(&signals, &signals.zeros_like()?)?;
            for device in devices()? {
                let to = |x: &Tensor| moved(x, &device);
                for nonnegative in [false, true] {
                    let pursuit = Pursuit { nonnegative, ..Pursuit::new(s) };
                    let got = bomp_masked(&to(&seen)?, &to(&mask)?, &to(&dictionary)?, &pursuit)?;
                    let want = bomp_masked_reference(&zeroed, &mask, &dictionary, &pursuit)?;
                    let what = format!("masked {n}x{p} s {s} {dtype:?} on {:?}", device.location());
                    let (got, want) = (rows(&got)?, rows(&want)?);
                    let mut others = 0;
                    for (got, want) in got.iter().zip(&want) {
                        let near = |(g, w): (&(usize, f64), &(usize, f64))| {
                            g.0 == w.0 && (g.1 - w.1).abs() <= 8. * VALUE * eps(dtype) * (p as f64).sqrt()
                        };
                        let same = got.len() == want.len() && got.iter().zip(want).all(near);
                        others += usize::from(!same);
                    }
                    assert!(others <= m / 20, "{what}: {others} of {m} codes differ");
                    assert!(m == 1 || got[0].is_empty(), "{what}: a code of nothing: {:?}", got[0]);
                }
            }
        }
    }
    Ok(())
}

/// Dictionaries of each form: padded with copies of the last atom, which is never better than the first of them.
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
            let many = 1 + n / 5; // enough that the Gram matrix is made, and once few
            for repeat in [1, many] {
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
        for (n, p, s) in [(100, 6, 32), (200, 9, 16), (600, 12, 40), (2000, 20, 60)] {
            let (signals, dictionary) = problem(200, n, p, DType::F32)?;
            let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
            for rule in [Rule::Omp, Rule::Ols] {
                let what = format!("{rule:?} {n}x{p} on {:?}", device.location());
                let codes = rule.run(&y, &d, &Pursuit::new(s))?;
                let norm = |x: Tensor| x.sqr()?.sum(1)?.sqrt()?.to_vec1::<f32>();
                let (left, size) = (norm(codes.residual(&y, &d)?)?, norm(y.clone())?);
                for (row, code) in rows(&codes)?.iter().enumerate() {
                    // The last atoms all but depend on those before: what they stand for is known to a few √eps.
                    let share = left[row] / size[row];
                    assert!(share < 6e-3, "{what}, row {row}: {share} of the signal is left after all atoms");
                    let mut atoms: Vec<_> = code.iter().map(|e| e.0).collect();
                    atoms.sort_unstable();
                    atoms.dedup();
                    assert_eq!(atoms.len(), code.len(), "{what}: an atom twice in {code:?}");
                    // One more than there are dimensions passes where the last of them hardly stood out from rounding.
                    assert!(code.len() <= p + 1, "{what}, row {row}: {} independent atoms", code.len());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_not_finite_is_refused_on_every_device() -> Result<()> {
    for device in devices()? {
        for (m, n, s) in [(64, 100, 4), (64, 600, 9), (2, 600, 9), (700, 3000, 30)] {
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
            bomp(&y, &d, &Pursuit::new(s))?; // and the next call is as if nothing had been
        }
    }
    Ok(())
}

#[test]
fn signals_in_several_chunks_are_coded_as_alone() -> Result<()> {
    for device in devices()? {
        // Correlations of 1.2 GB: several chunks on a GPU, in the warps' form and in the blocks'.
        for (n, s) in [(512, 3), (520, 3)] {
            let m = 600_000;
            let y = normal((m, 4), &device, Philox::new(3, 1))?;
            let d = normal((n, 4), &device, Philox::new(3, 2))?;
            let all = bomp(&y, &d, &Pursuit::new(s))?;
            for start in [0, 131_000, m - 1000] {
                let alone = bomp(&y.narrow(0, start, 1000)?, &d, &Pursuit::new(s))?;
                let what = format!("signals from {start} on, {n} atoms");
                for (all, alone) in [(&all.indices, &alone.indices), (&all.count, &alone.count)] {
                    let (all, alone) = (all.narrow(0, start, 1000)?, alone.clone());
                    assert_same_bits(&what, &all.to_dtype(DType::F32)?, &alone.to_dtype(DType::F32)?)?;
                }
                assert_same_bits(&what, &all.values.narrow(0, start, 1000)?, &alone.values)?;
            }
        }
    }
    Ok(())
}

#[test]
fn codes_stand_for_the_same_signals_on_every_device() -> Result<()> {
    for (m, n, p, s) in
        [(1, 1, 1, 1), (7, 5, 3, 2), (37, 40, 31, 9), (65, 300, 64, 33), (33, 70, 65, 40), (9, 20, 500, 3)]
    {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            let codes = bomp(&signals, &dictionary, &Pursuit::new(s))?;
            let dense = codes.to_dense()?;
            let fit =
                dense.to_dtype(DType::F64)?.matmul(&dictionary.to_dtype(DType::F64)?)?.to_dtype(dtype)?;
            for device in devices()? {
                let codes = SparseCodes {
                    indices: moved(&codes.indices, &device)?,
                    values: moved(&codes.values, &device)?,
                    count: moved(&codes.count, &device)?,
                    n_atoms: n,
                };
                let (y, d) = (moved(&signals, &device)?, moved(&dictionary, &device)?);
                let what = format!("{m} codes of {s} of {n} atoms, {p} samples on {:?}", device.location());
                assert_same_bits(&what, &codes.to_dense()?, &dense)?;
                // Sums of s products of order 1.
                let tolerance = 4. * eps(dtype) as f32 * s as f32;
                assert_close(&what, &codes.reconstruct(&d)?, &fit, tolerance, tolerance)?;
                assert_close(&what, &codes.residual(&y, &d)?, &(&signals - &fit)?, tolerance, tolerance)?;
            }
        }
    }
    Ok(())
}
