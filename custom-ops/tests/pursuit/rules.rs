//! What a pursuit promises whatever the data: ties, ends, ranges.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit};

const TYPES: [DType; 2] = [DType::F32, DType::F64];

#[test]
fn of_equal_candidates_the_first_is_chosen() -> Result<()> {
    // Atoms 5.. repeat atoms 0..; further copies lie a block and a lane further on, scaled by
    // powers of two or turned round.
    for dtype in TYPES {
        for copies in [vec![1.], vec![1., -1.], vec![-0.5, 4., 1.]] {
            let unique = gaussian(70, 24, 1)?;
            let copies = copies.into_iter().map(|by| &unique * by).collect::<Result<Vec<_>>>()?;
            let all: Vec<&Tensor> = std::iter::once(&unique).chain(&copies).collect();
            let (dictionary, signals) =
                (Tensor::cat(&all, 0)?.to_dtype(dtype)?, gaussian(90, 24, 2)?.to_dtype(dtype)?);
            for (name, fast, _) in CODERS {
                let codes = fast(&signals, &dictionary, &Pursuit::new(6))?;
                for (row, support) in supports(&codes)?.into_iter().enumerate() {
                    assert_eq!(support.len(), 6, "{name} {dtype:?}: row {row}");
                    assert!(support.iter().all(|&i| i < 70), "{name} {dtype:?}: row {row} has {support:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn no_atom_is_chosen_twice_and_padding_is_zero() -> Result<()> {
    // As many atoms as there are; the target ends some early.
    for dtype in TYPES {
        let (signals, dictionary) =
            (gaussian(64, 40, 3)?.to_dtype(dtype)?, gaussian(30, 40, 4)?.to_dtype(dtype)?);
        let pursuit = Pursuit { error: Some(ErrorTarget::Relative(0.7)), ..Pursuit::new(30) };
        for (name, fast, _) in CODERS {
            let codes = fast(&signals, &dictionary, &pursuit)?;
            let (indices, values) = (codes.indices.to_vec2::<u32>()?, codes.values.to_dtype(DType::F64)?);
            let (values, count) = (values.to_vec2::<f64>()?, codes.count.to_vec1::<u32>()?);
            for (row, &count) in count.iter().enumerate() {
                let (atoms, padding) = indices[row].split_at(count as usize);
                let mut sorted = atoms.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), atoms.len(), "{name} {dtype:?}: row {row} repeats an atom");
                assert!(padding.iter().all(|&i| i == 0), "{name} {dtype:?}: row {row}");
                assert!(
                    values[row][count as usize..].iter().all(|&x| x == 0.),
                    "{name} {dtype:?}: row {row}"
                );
            }
            assert!(count.iter().any(|&c| c < 30), "{name} {dtype:?}: nothing ended early");
        }
    }
    Ok(())
}

#[test]
fn dependent_atoms_end_a_pursuit_instead_of_dividing_by_zero() -> Result<()> {
    // Forty atoms of three dimensions out of twelve, signals of all twelve.
    let plane = Tensor::cat(&[&gaussian(40, 3, 5)?, &Tensor::zeros((40, 9), DType::F64, &Cpu)?], 1)?;
    let all = gaussian(50, 12, 7)?;
    let least = all.narrow(1, 3, 9)?.sqr()?.sum(1)?.sqrt()?.to_vec1::<f64>()?;
    // What f32 takes for rounding: the root of its least pivot, times α at rounding.
    for (dtype, nothing) in [(DType::F32, 5e-3), (DType::F64, 1e-9)] {
        let (dictionary, signals) = (plane.to_dtype(dtype)?, all.to_dtype(dtype)?);
        for (name, fast, reference) in CODERS {
            for coder in [fast, reference] {
                let codes = coder(&signals, &dictionary, &Pursuit::new(10))?;
                let values = codes.values.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
                assert!(values.iter().all(|x| x.is_finite()), "{name} {dtype:?}");
                let count = codes.count.to_vec1::<u32>()?;
                // In exact numbers three. The third atom of OLS is as good as any other in the
                // plane, so that it may be one that all but depends on the first two: f32 may then
                // refuse it, and both may take one more to exhaust the plane.
                let expected = if name == "bomp" { 3..=3 } else { 2..=4 };
                assert!(count.iter().all(|c| expected.contains(c)), "{name} {dtype:?}: {count:?}");
                let left = residual_norms(&codes, &all, &plane)?;
                for (row, (left, least)) in left.iter().zip(&least).enumerate() {
                    assert!(
                        *left < least + nothing,
                        "{name} {dtype:?}: row {row} keeps {left}, {least} is outside"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_is_added_to_an_exact_code() -> Result<()> {
    // Signals of two orthogonal atoms and no more; with ten allowed, rounding is not coded.
    for dtype in TYPES {
        let mut rows = gaussian(64, 64, 8)?.to_vec2::<f64>()?;
        for (j, row) in rows.iter_mut().enumerate().take(2) {
            row.iter_mut().enumerate().for_each(|(t, d)| *d = if t % 2 == j { 0.125 } else { 0. });
        }
        let rows: Vec<f64> = rows.into_iter().flatten().collect();
        let dictionary = Tensor::from_vec(rows, (64, 64), &Cpu)?;
        let x = Tensor::new(&[[3f64, -5.], [1., 1e-2]], &Cpu)?;
        let signals = x.matmul(&dictionary.narrow(0, 0, 2)?)?.to_dtype(dtype)?;
        for (name, fast, _) in CODERS {
            let codes = fast(&signals, &dictionary.to_dtype(dtype)?, &Pursuit::new(10))?;
            assert_eq!(supports(&codes)?, [[1, 0], [0, 1]], "{name} {dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn zero_signals_have_empty_codes_and_zero_atoms_are_never_chosen() -> Result<()> {
    for dtype in TYPES {
        let zeros = Tensor::zeros((3, 10), DType::F64, &Cpu)?;
        let signals = Tensor::cat(&[&zeros, &gaussian(3, 10, 9)?], 0)?.to_dtype(dtype)?;
        let dictionary = Tensor::cat(&[&zeros, &gaussian(4, 10, 10)?], 0)?.to_dtype(dtype)?;
        for (name, fast, _) in CODERS {
            let codes = fast(&signals, &dictionary, &Pursuit::new(7))?;
            assert_eq!(codes.count.to_vec1::<u32>()?, [0, 0, 0, 4, 4, 4], "{name} {dtype:?}");
            assert!(supports(&codes)?.iter().flatten().all(|&i| i >= 3), "{name} {dtype:?}");
            let none = fast(&signals, &Tensor::zeros((5, 10), dtype, &Cpu)?, &Pursuit::new(2))?;
            assert_eq!(none.count.to_vec1::<u32>()?, [0; 6], "{name} {dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn nothing_happens_without_signals_or_features() -> Result<()> {
    for (name, fast, _) in CODERS {
        let dictionary = gaussian(5, 4, 1)?;
        let none = fast(&Tensor::zeros((0, 4), DType::F64, &Cpu)?, &dictionary, &Pursuit::new(2))?;
        assert_eq!(
            (none.indices.dims(), none.count.dims()),
            ([0usize, 2].as_slice(), [0usize].as_slice()),
            "{name}"
        );
        let (signals, atoms) =
            (Tensor::zeros((2, 0), DType::F64, &Cpu)?, Tensor::zeros((5, 0), DType::F64, &Cpu)?);
        assert_eq!(fast(&signals, &atoms, &Pursuit::new(2))?.count.to_vec1::<u32>()?, [0, 0], "{name}");
    }
    Ok(())
}

#[test]
fn error_targets_end_a_pursuit_at_the_first_atom_that_meets_them() -> Result<()> {
    const S: usize = 20;
    let (signals, dictionary) = (gaussian(120, 32, 11)?, gaussian(80, 32, 12)?);
    let of_signal = norms(&signals)?;
    let each: Vec<f64> =
        of_signal.iter().enumerate().map(|(i, y)| y * (0.1 + 0.2 * (i % 5) as f64)).collect();
    let one_each = Tensor::new(each.as_slice(), &Cpu)?;
    type Limit<'a> = Box<dyn Fn(usize) -> f64 + 'a>;
    let kinds: [(ErrorTarget, Limit); 4] = [
        (ErrorTarget::Absolute(2.5), Box::new(|_| 2.5)),
        (ErrorTarget::Relative(0.4), Box::new(|i| 0.4 * of_signal[i])),
        (ErrorTarget::PerSignal(one_each.clone()), Box::new(|i| each[i])),
        (ErrorTarget::PerSignal(one_each.to_dtype(DType::F32)?), Box::new(|i| f64::from(each[i] as f32))),
    ];
    for (name, fast, _) in CODERS {
        // What each number of atoms leaves.
        let left = (1..=S)
            .map(|s| residual_norms(&fast(&signals, &dictionary, &Pursuit::new(s))?, &signals, &dictionary));
        let left = left.collect::<Result<Vec<_>>>()?;
        for (error, limit) in &kinds {
            let pursuit = Pursuit { error: Some(error.clone()), ..Pursuit::new(S) };
            let count = fast(&signals, &dictionary, &pursuit)?.count.to_vec1::<u32>()?;
            for (i, &count) in count.iter().enumerate() {
                let want = if of_signal[i] <= limit(i) {
                    0
                } else {
                    (1..S).find(|s| left[s - 1][i] <= limit(i)).unwrap_or(S)
                };
                assert_eq!(count as usize, want, "{name}, {error:?}: row {i}");
            }
            let (least, most) = (count.iter().min().unwrap(), count.iter().max().unwrap());
            assert!(least < most, "{name}, {error:?}: every signal has {least} atoms, which tests little");
        }
    }
    Ok(())
}

#[test]
fn a_smaller_target_never_takes_fewer_atoms() -> Result<()> {
    let (signals, dictionary) =
        (walks(100, 64, 13)?.to_dtype(DType::F32)?, walks(128, 64, 14)?.to_dtype(DType::F32)?);
    for (name, fast, _) in CODERS {
        let mut last = vec![0; 100];
        for epsilon in [1., 0.9, 0.5, 0.2, 0.1, 0.03, 0.] {
            let pursuit = Pursuit { error: Some(ErrorTarget::Relative(epsilon)), ..Pursuit::new(24) };
            let count = fast(&signals, &dictionary, &pursuit)?.count.to_vec1::<u32>()?;
            assert!(
                count.iter().zip(&last).all(|(now, last)| now >= last),
                "{name}: {epsilon} gives {count:?} after {last:?}"
            );
            last = count;
        }
        assert_eq!(last, [24; 100], "{name}: a target of 0 goes on to the last atom");
    }
    Ok(())
}

#[test]
fn powers_of_two_change_no_choice_and_no_mantissa() -> Result<()> {
    // Signals near the ends of the range, atoms of very different norms.
    let (signals, dictionary) = (gaussian(60, 20, 15)?, gaussian(50, 20, 16)?);
    for (dtype, exponents) in [(DType::F32, [-80, 80]), (DType::F64, [-900, 480])] {
        let (signals, dictionary) = (signals.to_dtype(dtype)?, dictionary.to_dtype(dtype)?);
        for (name, fast, _) in CODERS {
            let plain = fast(&signals, &dictionary, &Pursuit::new(5))?;
            for exponent in exponents {
                let by = 2f64.powi(exponent);
                let scaled = fast(&(&signals * by)?, &dictionary, &Pursuit::new(5))?;
                assert_eq!(supports(&scaled)?, supports(&plain)?, "{name} {dtype:?} 2^{exponent}");
                let wide = |x: &Tensor| x.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
                let want: Vec<f64> = wide(&plain.values)?.iter().map(|x| x * by).collect();
                assert_eq!(wide(&scaled.values)?, want, "{name} {dtype:?} 2^{exponent}");
            }
            let factors: Vec<f64> = (0..50).map(|j| 2f64.powi(j % 9 - 4)).collect();
            let factors = Tensor::new(factors.as_slice(), &Cpu)?.to_dtype(dtype)?.unsqueeze(1)?;
            let longer = fast(&signals, &dictionary.broadcast_mul(&factors)?, &Pursuit::new(5))?;
            assert_eq!(supports(&longer)?, supports(&plain)?, "{name} {dtype:?}");
            for (longer, plain) in entries(&longer)?.iter().flatten().zip(entries(&plain)?.iter().flatten()) {
                assert_eq!(longer.1 * 2f64.powi(plain.0 as i32 % 9 - 4), plain.1, "{name} {dtype:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn views_of_any_layout_are_read_as_what_they_show() -> Result<()> {
    let (signals, dictionary) = (gaussian(30, 18, 17)?, gaussian(45, 18, 18)?);
    let inside = |x: &Tensor| -> Result<Tensor> {
        let (rows, p) = x.dims2()?;
        let junk = Tensor::full(f64::NAN, (2, p), &Cpu)?;
        Tensor::cat(&[&junk, x, &junk], 0)?.narrow(0, 2, rows)
    };
    let turned = |x: &Tensor| x.t()?.contiguous()?.t();
    for (name, fast, _) in CODERS {
        let plain = fast(&signals, &dictionary, &Pursuit::new(4))?;
        for (signals, dictionary) in
            [(inside(&signals)?, turned(&dictionary)?), (turned(&signals)?, inside(&dictionary)?)]
        {
            let of_view = fast(&signals, &dictionary, &Pursuit::new(4))?;
            assert_same(name, &of_view, &plain, 0.)?;
        }
    }
    Ok(())
}
