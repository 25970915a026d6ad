//! Batch-OMP in its printed form, and signals in chunks: the codes of the fast form.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit, bomp, bomp_cholesky, omp_reference};

/// As for the fast form: systems whose condition stays below 1e4, and 1e4 · √p · eps is 1e-10.
const TOLERANCE_F64: f64 = 1e-9;

#[test]
fn the_printed_form_chooses_and_weighs_as_the_textbook_does() -> Result<()> {
    for (m, n, p, s) in [(1, 1, 1, 1), (3, 31, 7, 4), (70, 33, 12, 8), (130, 64, 12, 5), (300, 200, 17, 9)] {
        let (signals, dictionary) = (gaussian(m, p, 41)?, gaussian(n, p, 42)?);
        let printed = bomp_cholesky(&signals, &dictionary, s)?;
        assert_eq!((printed.width(), printed.n_atoms), (s, n));
        let want = omp_reference(&signals, &dictionary, &Pursuit::new(s))?;
        assert_same(&format!("{m}x{n}x{p}x{s}"), &printed, &want, TOLERANCE_F64)?;
    }
    Ok(())
}

#[test]
fn the_printed_form_in_f32_is_the_fast_one_but_for_ties() -> Result<()> {
    // As for the fast form beside an oracle in f64: .2 % of choices are within rounding of another
    // one; in f32 the printed form rounds its system too.
    const SHARE: f64 = 0.99;
    let (signals, dictionary) = (walks(2000, 64, 43)?, walks(256, 64, 44)?);
    let (signals, dictionary) = (signals.to_dtype(DType::F32)?, dictionary.to_dtype(DType::F32)?);
    let (printed, fast) =
        (bomp_cholesky(&signals, &dictionary, 8)?, bomp(&signals, &dictionary, &Pursuit::new(8))?);
    let (ours, theirs) = (supports(&printed)?, supports(&fast)?);
    let equal = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
    println!("{equal} of 2000 supports are the same, in order");
    assert!(equal as f64 >= SHARE * 2000., "only {equal} of 2000 supports are the same");
    let total = |codes| -> Result<f64> {
        Ok(residual_norms(codes, &signals, &dictionary)?.iter().map(|r| r * r).sum())
    };
    let (ours, theirs) = (total(&printed)?, total(&fast)?);
    assert!((ours / theirs - 1.).abs() < 1e-4, "residual energy {ours} against {theirs}");
    Ok(())
}

#[test]
fn the_printed_form_ends_where_nothing_is_left() -> Result<()> {
    // The third atom is the sum of the first two, the fourth is zero.
    let dictionary = Tensor::new(&[[1f64, 0., 0.], [0., 1., 0.], [1., 1., 0.], [0., 0., 0.]], &Cpu)?;
    let signals = Tensor::new(&[[0f64, 0., 0.], [0., 3., 0.], [2., -5., 1.]], &Cpu)?;
    let codes = bomp_cholesky(&signals, &dictionary, 4)?;
    assert_eq!(codes.count.to_vec1::<u32>()?, [0, 1, 2]);
    let error = bomp_cholesky(&signals, &dictionary, 5).err().map(|e| e.to_string()).unwrap_or_default();
    let want = "bomp_cholesky: n_nonzero must be in 1..=4, the number of atoms, got 5";
    assert_eq!(error.lines().next(), Some(want));
    Ok(())
}

#[test]
fn codes_do_not_depend_on_the_number_of_signals_at_a_time() -> Result<()> {
    // With and without a Gram matrix; chunks of one, that divide the signals and that do not, and
    // of more than there are.
    for (m, n, p, s) in [(130, 64, 12, 5), (7, 200, 30, 4)] {
        let (signals, dictionary) = (gaussian(m, p, 45)?, gaussian(n, p, 46)?);
        for (name, fast, _) in CODERS {
            let plain = Pursuit { error: Some(ErrorTarget::Relative(0.3)), ..Pursuit::new(s) };
            let want = fast(&signals, &dictionary, &plain)?;
            for chunk in [1, 2, 13, 65, m, 1000] {
                let got = fast(&signals, &dictionary, &Pursuit { chunk: Some(chunk), ..plain.clone() })?;
                assert_same(&format!("{name} {m}x{n}, {chunk} at a time"), &got, &want, TOLERANCE_F64)?;
            }
        }
    }
    let none = Pursuit { chunk: Some(0), ..Pursuit::new(1) };
    let error = bomp(&gaussian(2, 3, 47)?, &gaussian(4, 3, 48)?, &none).err().map(|e| e.to_string());
    let error = error.unwrap_or_default();
    assert_eq!(error.lines().next(), Some("bomp: chunk must be at least 1, got 0"));
    Ok(())
}
