//! The fast pursuits against the textbook's.
use super::common::*;
use candle::{DType, Result};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes, bomp, ols};

/// Coefficients solve a system whose matrix is formed first: errors grow with its condition, which
/// 64 eps of a pivot bound by 1/(64 eps) at worst; for these dictionaries it stays below 1e4, and
/// 1e4 · √p · eps is 1e-10.
const TOLERANCE_F64: f64 = 1e-9;

#[test]
fn codes_in_f64_are_those_of_the_reference_at_every_size() -> Result<()> {
    // Below, at and above the blocks of 32 and 64 atoms; features not a multiple of anything; with
    // and without a Gram matrix (few and many signals). Fewer atoms than features: with as many,
    // every last atom of OLS is as good as any.
    let sizes =
        [(1, 1, 1, 1), (3, 31, 7, 4), (40, 32, 16, 5), (70, 33, 12, 8), (1, 63, 20, 6), (130, 64, 12, 5)];
    let larger = [(66, 65, 33, 1), (5, 130, 64, 12), (300, 200, 17, 9), (2, 257, 100, 30)];
    for (m, n, p, s) in sizes.into_iter().chain(larger) {
        let (signals, dictionary) = (gaussian(m, p, 1)?, gaussian(n, p, 2)?);
        for (name, fast, reference) in CODERS {
            let pursuit = Pursuit::new(s);
            let got = fast(&signals, &dictionary, &pursuit)?;
            assert_eq!((got.width(), got.n_atoms), (s, n));
            let want = reference(&signals, &dictionary, &pursuit)?;
            assert_same(&format!("{name} {m}x{n}x{p}x{s}"), &got, &want, TOLERANCE_F64)?;
        }
    }
    Ok(())
}

#[test]
fn coherent_dictionaries_give_the_reference_too() -> Result<()> {
    let (signals, dictionary) = (walks(200, 64, 3)?, walks(300, 64, 4)?);
    for (name, fast, reference) in CODERS {
        let got = fast(&signals, &dictionary, &Pursuit::new(12))?;
        assert_same(name, &got, &reference(&signals, &dictionary, &Pursuit::new(12))?, TOLERANCE_F64)?;
    }
    Ok(())
}

#[test]
fn f32_chooses_as_an_f64_oracle_does() -> Result<()> {
    // A choice differs where two candidates are within rounding: a few eps of ‖y‖ over a
    // correlation that falls to a tenth of it, about 1e-5. With gaps spread over the n = 256
    // candidates of a step (mean gap of the best two about 1/20 of the best), 8 steps miss in about
    // 8 · 20 · 1e-5 = .2 % of signals. More than twice that is allowed.
    const SHARE: f64 = 0.995;
    let (signals, dictionary) = (walks(2000, 64, 5)?, walks(256, 64, 6)?);
    let narrow = (signals.to_dtype(DType::F32)?, dictionary.to_dtype(DType::F32)?);
    let pursuit = Pursuit::new(8);
    for (name, fast, reference) in CODERS {
        let (got, want) =
            (fast(&narrow.0, &narrow.1, &pursuit)?, reference(&signals, &dictionary, &pursuit)?);
        let (ours, oracle) = (supports(&got)?, supports(&want)?);
        let equal = ours.iter().zip(&oracle).filter(|(a, b)| a == b).count();
        let share = equal as f64 / ours.len() as f64;
        println!("{name}: {:.2} % of the supports are the oracle's, in order", 100. * share);
        assert!(share >= SHARE, "{name}: {share} of the supports agree, {SHARE} wanted");
        // Nothing is lost where they do not: all residuals together are the same to a part in
        // 10,000.
        let total = |codes: &SparseCodes| -> Result<f64> {
            Ok(residual_norms(codes, &signals, &dictionary)?.iter().map(|r| r * r).sum::<f64>())
        };
        let (ours, oracle) = (total(&got)?, total(&want)?);
        assert!((ours / oracle - 1.).abs() < 1e-4, "{name}: residual energy {ours} against {oracle}");
    }
    Ok(())
}

#[test]
fn what_is_left_is_orthogonal_to_the_chosen_atoms() -> Result<()> {
    // In f32 the coefficients carry a few eps times the condition of the support, below 1e3 here.
    const TOLERANCE_F32: f64 = 1e-4;
    let (signals, dictionary) = (walks(100, 48, 7)?, walks(150, 48, 8)?);
    for (dtype, tolerance) in [(DType::F64, TOLERANCE_F64), (DType::F32, TOLERANCE_F32)] {
        for (name, fast, _) in CODERS {
            let codes = fast(&signals.to_dtype(dtype)?, &dictionary.to_dtype(dtype)?, &Pursuit::new(10))?;
            let wide = SparseCodes { values: codes.values.to_dtype(DType::F64)?, ..codes.clone() };
            let correlations =
                wide.residual(&signals, &dictionary)?.matmul(&dictionary.t()?)?.to_vec2::<f64>()?;
            let (of_signal, of_atom) = (norms(&signals)?, norms(&dictionary)?);
            for (row, support) in supports(&codes)?.into_iter().enumerate() {
                for i in support {
                    let cosine = correlations[row][i as usize] / (of_signal[row] * of_atom[i as usize]);
                    assert!(cosine.abs() <= tolerance, "{name} {dtype:?}: row {row}, atom {i}: {cosine}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn least_squares_selection_leaves_less() -> Result<()> {
    let (signals, dictionary) = (walks(300, 64, 9)?, walks(200, 64, 10)?);
    let total = |codes: SparseCodes| -> Result<f64> {
        Ok(residual_norms(&codes, &signals, &dictionary)?.iter().map(|r| r * r).sum::<f64>().sqrt())
    };
    let by_omp = total(bomp(&signals, &dictionary, &Pursuit::new(8))?)?;
    let by_ols = total(ols(&signals, &dictionary, &Pursuit::new(8))?)?;
    // 3 to 5 % on natural images.
    assert!(by_ols < 0.98 * by_omp, "OLS leaves {by_ols}, OMP {by_omp}");
    Ok(())
}

#[test]
fn a_signal_codes_the_same_alone_and_in_a_crowd() -> Result<()> {
    // Alone it takes the way without a Gram matrix.
    let (signals, dictionary) = (gaussian(400, 30, 12)?, gaussian(90, 30, 13)?);
    let pursuit = Pursuit { error: Some(ErrorTarget::Relative(0.3)), ..Pursuit::new(7) };
    for (name, fast, _) in CODERS {
        let all = fast(&signals, &dictionary, &pursuit)?;
        for row in [0, 1, 255, 399] {
            let part = |x: &candle::Tensor| x.narrow(0, row, 1);
            let in_crowd = SparseCodes {
                indices: part(&all.indices)?,
                values: part(&all.values)?,
                count: part(&all.count)?,
                n_atoms: 90,
            };
            let alone = fast(&part(&signals)?, &dictionary, &pursuit)?;
            assert_same(&format!("{name}, row {row}"), &alone, &in_crowd, TOLERANCE_F64)?;
        }
    }
    Ok(())
}

#[test]
fn the_same_call_gives_the_same_bits() -> Result<()> {
    let (signals, dictionary) = (walks(1000, 64, 14)?, walks(256, 64, 15)?);
    let (signals, dictionary) = (signals.to_dtype(DType::F32)?, dictionary.to_dtype(DType::F32)?);
    for (_, fast, _) in CODERS {
        let bits = || -> Result<(Vec<u32>, Vec<u32>)> {
            let codes = fast(&signals, &dictionary, &Pursuit::new(8))?;
            let values = codes.values.flatten_all()?.to_vec1::<f32>()?;
            Ok((codes.indices.flatten_all()?.to_vec1()?, values.iter().map(|x| x.to_bits()).collect()))
        };
        assert!(bits()? == bits()?);
    }
    Ok(())
}

#[test]
#[ignore = "a quarter of a minute, half a GB"]
fn the_largest_sizes_that_are_promised_work() -> Result<()> {
    // Few signals go without a Gram matrix, 66 with one of 8192 atoms.
    let (n, p, s) = (8192, 1024, 128);
    let dictionary = gaussian(n, p, 16)?.to_dtype(DType::F32)?;
    let wide = gaussian(3, 4096, 17)?.to_dtype(DType::F32)?;
    let cases = [(gaussian(66, p, 18)?.to_dtype(DType::F32)?, dictionary), (wide, gaussian(n, 4096, 19)?)];
    for (signals, dictionary) in cases {
        let dictionary = dictionary.to_dtype(DType::F32)?;
        for (name, fast, _) in CODERS {
            let codes = fast(&signals, &dictionary, &Pursuit::new(s))?;
            assert!(codes.count.to_vec1::<u32>()?.iter().all(|&count| count == s as u32), "{name}");
            let atoms = dictionary.index_select(&codes.indices.get(0)?, 0)?;
            let residual = codes.residual(&signals, &dictionary)?.narrow(0, 0, 1)?;
            let cosines = residual.matmul(&atoms.t()?)?.abs()?.max_all()?.to_scalar::<f32>()?
                / (norms(&signals)?[0] * norms(&dictionary)?[0]) as f32;
            assert!(cosines < 1e-5, "{name}: a chosen atom keeps a cosine of {cosines}");
        }
    }
    Ok(())
}
