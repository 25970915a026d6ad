//! Coefficients of at least 0.
use super::common::*;
use candle::{DType, Result};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes};

fn nonnegative(s: usize) -> Pursuit {
    Pursuit { nonnegative: true, ..Pursuit::new(s) }
}

/// As for codes of either sign; the condition of the supports is that of the same dictionaries.
const TOLERANCE: f64 = 1e-9;

#[test]
fn codes_are_those_of_the_reference() -> Result<()> {
    // Atoms with positive entries are coherent: coefficients would turn negative soon.
    for (m, n, p, s) in [(1, 5, 9, 3), (40, 65, 20, 12), (90, 64, 33, 10), (3, 100, 30, 15)] {
        for (name, fast, reference) in CODERS {
            let (signals, dictionary) = (gaussian(m, p, 1)?.abs()?, gaussian(n, p, 2)?.abs()?);
            let got = fast(&signals, &dictionary, &nonnegative(s))?;
            let want = reference(&signals, &dictionary, &nonnegative(s))?;
            assert_same(&format!("{name} {m}x{n}x{p}x{s}"), &got, &want, TOLERANCE)?;
        }
    }
    Ok(())
}

#[test]
fn no_coefficient_is_negative_and_none_could_help() -> Result<()> {
    let (signals, dictionary) = (gaussian(80, 24, 3)?.abs()?, gaussian(60, 24, 4)?.abs()?);
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
        for (name, fast, _) in CODERS {
            let codes = fast(&signals.to_dtype(dtype)?, &dictionary.to_dtype(dtype)?, &nonnegative(12))?;
            let wide = SparseCodes { values: codes.values.to_dtype(DType::F64)?, ..codes.clone() };
            let gradients =
                wide.residual(&signals, &dictionary)?.matmul(&dictionary.t()?)?.to_vec2::<f64>()?;
            for (row, code) in entries(&codes)?.into_iter().enumerate() {
                for (i, x) in code {
                    assert!(x > 0., "{name} {dtype:?}: row {row}, atom {i}: {x}");
                    // A free coefficient is where its gradient vanishes; ‖y‖ ‖d‖ is about 24.
                    let gradient = gradients[row][i as usize] / 24.;
                    assert!(gradient.abs() <= tolerance, "{name} {dtype:?}: row {row}, atom {i}: {gradient}");
                }
            }
            // Some atoms were held at 0 on the way, or this says little.
            let count = codes.count.to_vec1::<u32>()?;
            assert!(count.iter().any(|&c| c < 12), "{name} {dtype:?}: {count:?}");
        }
    }
    Ok(())
}

#[test]
fn an_error_target_is_that_of_the_constrained_fit() -> Result<()> {
    let (signals, dictionary) = (gaussian(60, 24, 5)?.abs()?, gaussian(60, 24, 6)?.abs()?);
    let pursuit = Pursuit { error: Some(ErrorTarget::Relative(0.5)), ..nonnegative(20) };
    for (name, fast, reference) in CODERS {
        let got = fast(&signals, &dictionary, &pursuit)?;
        assert_same(name, &got, &reference(&signals, &dictionary, &pursuit)?, TOLERANCE)?;
        let left = residual_norms(&got, &signals, &dictionary)?;
        let met = left.iter().zip(norms(&signals)?).filter(|(r, y)| **r <= 0.5 * y).count();
        assert!(met > 30, "{name}: {met} of 60 signals meet the target");
    }
    Ok(())
}

#[test]
fn signals_against_every_atom_have_empty_codes() -> Result<()> {
    let (signals, dictionary) = (gaussian(5, 8, 7)?.abs()?.neg()?, gaussian(6, 8, 8)?.abs()?);
    for (name, fast, _) in CODERS {
        let codes = fast(&signals, &dictionary, &nonnegative(3))?;
        assert_eq!(codes.count.to_vec1::<u32>()?, [0; 5], "{name}");
    }
    Ok(())
}
