use super::{assert_close, correlated, message, noise, values};
use candle::{DType, Device::Cpu, Tensor};
use chandlery_datasets::Result;
use chandlery_datasets::preparation::{
    CONTRAST_REGULARISER, TutorialRescale, normalize_contrast, remove_mean,
};
use std::collections::HashMap;

/// More rows than are held as f64 at a time.
const MANY_ROWS: usize = 8192 + 3;

/// Half a unit in the last place of an f32 below 32, which all values here are.
const F32_ROUNDING: f64 = 9.6e-7;

/// `f` of each row in f64.
fn by_row(x: &Tensor, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let width = x.dim(1).unwrap();
    values(x).chunks_exact(width).flat_map(f).collect()
}

fn minus_mean(row: &[f64]) -> Vec<f64> {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    row.iter().map(|v| v - mean).collect()
}

/// Flat patches of values that f32 cannot hold exactly, 49 of them so that the mean is not a shift
/// either.
fn flat() -> Tensor {
    let levels = [0.1f32, 1. / 3., 0.7, 1.].map(|level| [level; 49]).concat();
    Tensor::from_vec(levels, (4, 49), &Cpu).unwrap()
}

#[test]
fn remove_mean_is_the_formula_and_leaves_no_mean() -> Result<()> {
    for (n, width) in [(1, 1), (5, 64), (MANY_ROWS, 7)] {
        let x = correlated(n, width, 1);
        let got = remove_mean(&x)?;
        assert_eq!((got.dims(), got.dtype()), ([n, width].as_slice(), DType::F32));
        assert_close("remove_mean", &values(&got), &by_row(&x, minus_mean), F32_ROUNDING);
    }
    Ok(())
}

#[test]
fn a_flat_patch_becomes_zero_exactly_and_never_nan() -> Result<()> {
    assert_eq!(values(&remove_mean(&flat())?), [0.; 4 * 49]);
    assert_eq!(values(&normalize_contrast(&flat(), CONTRAST_REGULARISER)?), [0.; 4 * 49]);
    let rescale = TutorialRescale::fit(&flat())?;
    assert_eq!(rescale.deviation(), 0.);
    assert_eq!(values(&rescale.transform(&flat())?), [0.5; 4 * 49]);
    // Among others, too.
    let others = TutorialRescale::fit(&correlated(9, 49, 2))?;
    assert_eq!(values(&others.transform(&flat())?), [0.5; 4 * 49]);
    Ok(())
}

#[test]
fn no_rows_in_no_rows_out() -> Result<()> {
    let none = Tensor::zeros((0, 4), DType::F32, &Cpu)?;
    assert_eq!(remove_mean(&none)?.dims(), [0, 4]);
    assert_eq!(normalize_contrast(&none, 1.)?.dims(), [0, 4]);
    Ok(())
}

#[test]
fn normalize_contrast_is_the_formula() -> Result<()> {
    for (n, width) in [(5, 64), (MANY_ROWS, 7)] {
        let x = correlated(n, width, 3);
        for regulariser in [CONTRAST_REGULARISER, 0.5] {
            let want = by_row(&x, |row| {
                let centred = minus_mean(row);
                let variance = centred.iter().map(|v| v * v).sum::<f64>() / width as f64;
                let scale = (variance + regulariser).sqrt();
                centred.iter().map(|v| v / scale).collect()
            });
            let got = normalize_contrast(&x, regulariser)?;
            assert_close("normalize_contrast", &values(&got), &want, F32_ROUNDING);
        }
    }
    Ok(())
}

#[test]
fn normalize_contrast_forgets_brightness_and_contrast() -> Result<()> {
    let x = correlated(6, 64, 4);
    let other = x.affine(3., 40.)?;
    let tiny = 1e-12;
    // 40 more, and 2.4e-6 of rounding at that height, over a deviation of about 4.
    assert_close(
        "contrast",
        &values(&normalize_contrast(&other, tiny)?),
        &values(&normalize_contrast(&x, tiny)?),
        4e-6,
    );
    Ok(())
}

/// 0.01 noise and two outliers, beyond ±3σ.
fn with_outliers() -> Tensor {
    let mut x: Vec<f32> = noise(30 * 16, 5).iter().map(|v| 0.5 + 0.01 * v).collect();
    x[17] = 0.9;
    x[100] = 0.;
    Tensor::from_vec(x, (30, 16), &Cpu).unwrap()
}

#[test]
fn tutorial_rescale_is_normalize_data_of_the_exercise() -> Result<()> {
    let x = with_outliers();
    let centred = by_row(&x, minus_mean);
    // pstd = 3 * std(patches(:)): about the overall mean, which is zero now, with divisor N - 1.
    let pstd = 3. * (centred.iter().map(|v| v * v).sum::<f64>() / (centred.len() - 1) as f64).sqrt();
    let want: Vec<f64> = centred.iter().map(|v| (v.min(pstd).max(-pstd) / pstd + 1.) * 0.4 + 0.1).collect();
    let rescale = TutorialRescale::fit(&x)?;
    let got = values(&rescale.transform(&x)?);
    assert_close("deviation", &[3. * rescale.deviation()], &[pstd], 1e-15);
    assert_close("rescaled", &got, &want, 6e-8);
    let (least, most) = (0.1f32.into(), 0.9f32.into());
    assert!(got.iter().all(|v| (least..=most).contains(v)));
    assert_eq!((got[17], got[100]), (most, least));
    Ok(())
}

#[test]
fn tutorial_rescale_goes_back_but_for_what_was_clipped() -> Result<()> {
    let x = with_outliers();
    let rescale = TutorialRescale::fit(&x)?;
    let limit = 3. * rescale.deviation();
    let back = rescale.inverse(&rescale.transform(&x)?)?;
    let want: Vec<f64> = by_row(&x, minus_mean).iter().map(|v| v.clamp(-limit, limit)).collect();
    assert_close("inverse", &values(&back), &want, 2.4e-7 * limit);
    Ok(())
}

#[test]
fn tutorial_rescale_keeps_the_scale_it_was_fitted_with() -> Result<()> {
    let fitted = TutorialRescale::fit(&correlated(MANY_ROWS, 3, 6))?;
    let loaded = TutorialRescale::from_tensors(&fitted.tensors("rescale")?, "rescale")?;
    assert_eq!(loaded, fitted);
    let new = correlated(5, 3, 7).affine(0.1, 0.)?;
    let spread = |t: &Tensor| values(t).iter().map(|v| (v - 0.5).abs()).fold(0., f64::max);
    assert!(spread(&loaded.transform(&new)?) < 0.2 * spread(&TutorialRescale::fit(&new)?.transform(&new)?));
    Ok(())
}

#[test]
fn normalisations_say_what_is_wrong() -> Result<()> {
    let x = Tensor::zeros((2, 3, 4), DType::F32, &Cpu)?;
    assert_eq!(
        message(remove_mean(&x)),
        "remove_mean: patches must be f32 of shape [n_samples, n_features], got F32 of shape [2, 3, 4]"
    );
    assert_eq!(
        message(normalize_contrast(&x.flatten_from(1)?.to_dtype(DType::U8)?, 1.)),
        "normalize_contrast: patches must be f32 of shape [n_samples, n_features], got U8 of shape [2, 12]"
    );
    let x = x.flatten_from(1)?;
    for (bad, name) in [(0., "0"), (-1., "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        assert_eq!(
            message(normalize_contrast(&x, bad)),
            format!("normalize_contrast: regulariser must be a finite number above 0, got {name}")
        );
    }
    assert_eq!(
        message(TutorialRescale::fit(&x.narrow(0, 0, 1)?.narrow(1, 0, 1)?)),
        "TutorialRescale::fit: patches must hold at least 2 values, got 1"
    );
    assert_eq!(
        message(TutorialRescale::fit(&Tensor::new(&[[0f32, f32::NAN]], &Cpu)?)),
        "TutorialRescale::fit: patches must be finite, got NaN or infinity; find and drop it"
    );
    assert_eq!(
        message(TutorialRescale::from_tensors(&HashMap::new(), "rescale")),
        "rescale: no tensor 'rescale.deviation'; there are: none"
    );
    let negative = HashMap::from([("r.deviation".to_owned(), Tensor::new(&[-1f64], &Cpu)?)]);
    assert_eq!(
        message(TutorialRescale::from_tensors(&negative, "r")),
        "r.deviation: must be at least 0, got [-1.0]; load what `tensors` gave, unchanged"
    );
    Ok(())
}
