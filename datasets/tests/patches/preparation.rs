use super::{assert_close, correlated, message, noise, values};
use candle::{DType, Device::Cpu, Tensor};
use chandlery_datasets::preparation::{
    Moments, Pca, Preparation, RowStatistics, StepConfig, Whitening, WhiteningConfig, remove_mean,
};
use chandlery_datasets::{Result, Split};

/// Of a few operations in f32 on values below 10.
const ROUNDING: f64 = 5e-6;

fn bytes(n: usize, n_features: usize) -> Result<Tensor> {
    let values = noise(n * n_features, 4).iter().map(|x| (127. + 127. * x) as u8).collect();
    Ok(Tensor::from_vec::<_, u8>(values, (n, n_features), &Cpu)?)
}

fn fit(rows: &Tensor, steps: &[&str]) -> Result<Preparation> {
    let steps: Vec<StepConfig> = steps.iter().map(|step| step.parse().unwrap()).collect();
    Preparation::fit_tensor(rows, &steps, 1)
}

#[test]
fn bytes_and_floats_are_prepared_alike() -> Result<()> {
    let stored = bytes(300, 6)?;
    let floats = stored.to_dtype(DType::F32)?.affine(1. / 255., 0.)?;
    let every = ["scale=3", "center", "row-mean", "contrast", "unit-variance", "rescale", "pca=4", "zca=0.1"];
    let of_bytes = fit(&stored, &every)?;
    let of_floats = fit(&floats, &every)?;
    let want = values(&of_bytes.apply(&stored)?);
    assert_close("floats", &values(&of_bytes.apply(&floats)?), &want, ROUNDING);
    assert_close("fitted to floats", &values(&of_floats.apply(&stored)?), &want, 20. * ROUNDING);
    assert_eq!(values(&Preparation::default().apply(&stored)?), values(&floats));
    Ok(())
}

#[test]
fn steps_are_those_of_their_own_functions_in_order() -> Result<()> {
    let rows = correlated(500, 5, 3);
    let by_hand = remove_mean(&rows)?;
    let zca = Whitening::fit(&by_hand, &WhiteningConfig { epsilon: 0.01, ..WhiteningConfig::default() })?;
    let prepared = fit(&rows, &["row-mean", "zca=0.01"])?.apply(&rows)?;
    assert_close("row-mean, zca", &values(&prepared), &values(&zca.transform(&by_hand)?), ROUNDING);

    // The other way round: whitened rows lose their means, and have them no longer.
    let other = fit(&rows, &["zca=0.01", "row-mean"])?.apply(&rows)?;
    assert_close("means", &values(&other.mean(1)?), &vec![0.; 500], ROUNDING);

    let prepared = fit(&rows, &["center", "unit-variance"])?;
    let statistics = RowStatistics::of(&Split::from_tensors(&rows, None)?, &prepared, 1)?;
    assert!((statistics.stdev - 1.).abs() < ROUNDING, "{statistics:?}");
    assert!(statistics.mean.iter().all(|mean| mean.abs() < 1e-5), "{statistics:?}");
    Ok(())
}

#[test]
fn what_was_not_lost_comes_back() -> Result<()> {
    let rows = correlated(200, 6, 5);
    for steps in [&["scale=0.25", "center"][..], &["unit-variance", "pca=6"], &["whiten"], &["zca=0.01"]] {
        let preparation = fit(&rows, steps)?;
        let back = preparation.inverse(&preparation.apply(&rows)?)?;
        assert_close(&format!("{steps:?}"), &values(&back), &values(&rows), 1e-4);
    }
    // Row means are lost.
    let preparation = fit(&rows, &["row-mean"])?;
    let back = preparation.inverse(&preparation.apply(&rows)?)?;
    assert_close("row-mean", &values(&back), &values(&remove_mean(&rows)?), ROUNDING);
    Ok(())
}

#[test]
fn a_stored_preparation_gives_the_same_bits() -> Result<()> {
    let rows = correlated(200, 6, 6);
    let all = [
        "minmax",
        "log1p",
        "robust",
        "standardise",
        "scale=2",
        "center",
        "contrast=0.1",
        "row-mean",
        "rescale",
        "unit-variance",
        "zca",
        "whiten=5",
        "pca=3",
    ];
    let fitted = fit(&rows, &all)?;
    let text = serde_json::to_string(&fitted).unwrap();
    let mut loaded: Preparation = serde_json::from_str(&text).unwrap();
    assert_eq!(
        message(loaded.apply(&rows)),
        "Preparation: the fitted numbers of a step (each feature mapped onto [0, 1] and clipped) are not loaded; load the model with \
         from_pretrained"
    );
    // Widths are known without them.
    assert_eq!((loaded.n_inputs(3)?, loaded.n_outputs(6)?), (6, 3));
    loaded.load(&fitted.tensors()?, &Cpu)?;
    assert_eq!(loaded, fitted);
    assert_eq!(values(&loaded.apply(&rows)?), values(&fitted.apply(&rows)?));
    assert_eq!(loaded.words(), fitted.words());
    assert_ne!(loaded, fit(&rows.affine(1., 0.1)?, &all)?);

    let mut loaded: Preparation = serde_json::from_str(&text).unwrap();
    let mut tensors = fitted.tensors()?;
    tensors.remove("preparation.12.components");
    let said = message(loaded.load(&tensors, &Cpu));
    assert!(said.starts_with("preparation.12: no tensor 'preparation.12.components'"), "{said}");
    let mut other: Preparation =
        serde_json::from_str(&text.replace("\"n_components\":3", "\"n_components\":2")).unwrap();
    let said = message(other.load(&fitted.tensors()?, &Cpu));
    assert!(said.starts_with("preparation.12: the tensors are those of Pca"), "{said}");
    Ok(())
}

#[test]
fn names_of_steps_are_read_and_written() {
    for name in [
        "scale=2.5",
        "unit-variance",
        "center",
        "standardise",
        "minmax",
        "robust",
        "log1p",
        "row-mean",
        "contrast=0.5",
        "rescale",
        "pca=7",
        "whiten",
        "whiten=3",
        "zca=0.125",
    ] {
        assert_eq!(name.parse::<StepConfig>().unwrap().to_string(), name);
    }
    let said = |name: &str| name.parse::<StepConfig>().unwrap_err();
    assert_eq!(said("pca"), "pca: give the number of components, as in pca=50");
    assert_eq!(said("center=2"), "center takes no number, got 2");
    assert_eq!(said("scale=0"), "Preparation: a scale must be a finite number above 0, got 0");
    assert!(said("ica").starts_with("ica: no such step; give standardise, minmax"));
}

/// Five rows of columns of other scales: counts, one constant, one of mostly zeros, one far from 0.
fn table() -> Result<Tensor> {
    let rows = [
        [0f32, 7., 0., 1e6 + 1., -3.],
        [10., 7., 0., 1e6 + 2., 5.],
        [100., 7., 0., 1e6 + 3., 1.],
        [1000., 7., 9., 1e6 + 4., 0.],
        [40., 7., 0., 1e6 + 5., 2.],
    ];
    Ok(Tensor::new(&rows, &Cpu)?)
}

/// The columns of a matrix.
fn columns(t: &Tensor) -> Result<Vec<Vec<f64>>> {
    Ok(t.to_dtype(DType::F64)?.t()?.to_vec2()?)
}

#[test]
fn columns_are_scaled_by_numbers_of_their_own() -> Result<()> {
    let rows = table()?;
    let prepared = |step: &str| columns(&fit(&rows, &[step])?.apply(&rows)?);
    for (j, column) in prepared("standardise")?.iter().enumerate() {
        let mean = column.iter().sum::<f64>() / 5.;
        let deviation = (column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.).sqrt();
        assert!(mean.abs() < 1e-6, "column {j}: {mean}");
        assert!((deviation - if j == 1 { 0. } else { 1. }).abs() < 1e-6, "column {j}: {deviation}");
    }
    let minmax = prepared("minmax")?;
    assert_close("far from 0", &minmax[3], &[0., 0.25, 0.5, 0.75, 1.], 1e-7);
    assert_close("constant", &minmax[1], &[0.; 5], 0.);
    assert_close("counts", &minmax[0], &[0., 0.01, 0.1, 1., 0.04], 1e-7);
    let robust = prepared("robust")?;
    // Median 40, quartiles 10 and 100; where quartiles are equal the median is subtracted.
    assert_close("counts", &robust[0], &[-4. / 9., -1. / 3., 2. / 3., 32. / 3., 0.], 1e-6);
    assert_close("mostly zeros", &robust[2], &[0., 0., 0., 9., 0.], 0.);
    assert_close("constant", &robust[1], &[0.; 5], 0.);
    let positive = rows.narrow(1, 0, 4)?;
    let logs = columns(&fit(&positive, &["log1p"])?.apply(&positive)?)?;
    assert_close("logs", &logs[0], &[0f64, 10., 100., 1000., 40.].map(f64::ln_1p), 1e-6);
    Ok(())
}

#[test]
fn scales_are_those_of_the_rows_fitted_on_and_values_outside_are_clipped_by_minmax_alone() -> Result<()> {
    let rows = table()?;
    let new = Tensor::new(&[[-100f32, 8., 18., 1e6, 6.]], &Cpu)?;
    let apply = |step: &str| Ok::<_, chandlery_datasets::Error>(values(&fit(&rows, &[step])?.apply(&new)?));
    assert_close("minmax", &apply("minmax")?, &[0., 0., 1., 0., 1.], 0.);
    let standardised = apply("standardise")?;
    assert!(
        standardised[1] == 0. && standardised[0] < 0. && (standardised[3] + 3. / 2f64.sqrt()).abs() < 1e-5
    );
    Ok(())
}

#[test]
fn scaled_columns_come_back_and_combine_in_order() -> Result<()> {
    let rows = table()?;
    for steps in [&["standardise"][..], &["minmax"], &["robust"], &["standardise", "minmax"]] {
        let preparation = fit(&rows, steps)?;
        let back = preparation.inverse(&preparation.apply(&rows)?)?;
        for (got, want) in columns(&back)?.iter().zip(columns(&rows)?) {
            let tolerance = 1e-5 * want.iter().fold(1f64, |m, x| m.max(x.abs()));
            assert_close(&format!("{steps:?}"), got, &want, tolerance);
        }
    }
    let counts = rows.narrow(1, 0, 3)?;
    let preparation = fit(&counts, &["log1p", "pca=2"])?;
    assert_eq!(preparation.apply(&counts)?.dims(), [5, 2]);
    let logs = fit(&counts, &["log1p"])?.apply(&counts)?;
    let by_hand = Pca::fit(&logs, Some(2))?.transform(&logs)?;
    assert_close("log1p, pca", &values(&preparation.apply(&counts)?), &values(&by_hand), 1e-5);
    let back = values(&preparation.inverse(&preparation.apply(&counts)?)?);
    assert_close("and back", &back, &values(&counts), 0.05);
    // In f64 what is f64.
    let double = fit(&rows, &["standardise"])?.apply(&rows.to_dtype(DType::F64)?)?;
    let exact = columns(&double)?[3]
        .iter()
        .zip([-2., -1., 0., 1., 2.])
        .all(|(got, k)| (got - k / 2f64.sqrt()).abs() < 1e-12);
    assert!(double.dtype() == DType::F64 && exact);
    Ok(())
}

#[test]
fn streamed_rows_are_fitted_and_counted_as_those_in_memory() -> Result<()> {
    // More rows than a block, of which the last has no logarithm.
    let mut rows: Vec<f32> = (0..2 * 2500).map(|i| (i * 37 % 1009) as f32).collect();
    let split = Split::from_f32(rows.clone(), 2, None)?;
    for step in ["standardise", "minmax", "robust", "log1p"] {
        let step: StepConfig = step.parse().unwrap();
        let of_split = Preparation::fit(&split, &[step], 0)?;
        let tensor = Tensor::from_vec(rows.clone(), (2500, 2), &Cpu)?;
        assert_eq!(of_split, Preparation::fit_tensor(&tensor, &[step], 7)?, "{step}");
    }
    rows[2 * 2499 + 1] = -1.;
    let split = Split::from_f32(rows.clone(), 2, None)?;
    let said = message(Preparation::fit(&split, &[StepConfig::Log1p], 0));
    assert!(said.starts_with("log1p: row 2499, column 1: values must be above -1, got -1;"), "{said}");
    let after = message(Preparation::fit(&split, &[StepConfig::Scale(2.), StepConfig::Log1p], 0));
    assert!(after.starts_with("log1p: row 2499, column 1: values must be above -1, got -2;"), "{after}");
    // Rows are counted in the file, also where some were held out.
    let (train, _) = split.hold_out(100, 3)?;
    let said = message(Preparation::fit(&train, &[StepConfig::Log1p], 0));
    assert!(said.starts_with("log1p: row 2499, column 1"), "{said}");
    let log1p = Preparation::of(&[StepConfig::Log1p])?;
    let said = message(log1p.apply_from(100, &Tensor::new(&[[0f32, 1.], [-3., 0.]], &Cpu)?));
    assert!(said.starts_with("log1p: row 101, column 0: values must be above -1, got -3;"), "{said}");
    Ok(())
}

#[test]
fn preparations_say_what_is_wrong() -> Result<()> {
    let flat = Tensor::full(3f32, (4, 2), &Cpu)?;
    assert_eq!(
        message(fit(&flat, &["unit-variance"])),
        "Preparation: rows must vary to be given unit variance, got 3 everywhere"
    );
    let pca = fit(&correlated(20, 4, 1), &["pca=2"])?;
    assert_eq!(
        message(pca.n_outputs(5)),
        "Preparation: the first 2 principal components is for rows of 4 values, got 5"
    );
    assert_eq!(
        message(pca.n_inputs(3)),
        "Preparation: the first 2 principal components gives rows of 2 values, where 3 are needed"
    );
    assert_eq!(
        message(fit(&table()?, &["standardise"])?.apply(&correlated(3, 4, 1))),
        "Preparation: rows must have shape [n_samples, 5], got [3, 4]"
    );
    assert_eq!(
        message(pca.apply(&correlated(3, 5, 1))),
        "Pca.transform: rows must be f32 or f64 of shape [n_samples, 4], got F32 of shape [3, 5]"
    );
    Ok(())
}

#[test]
fn principal_components_are_those_of_a_covariance_known_by_hand() -> Result<()> {
    // C = [[2, 1], [1, 2]]: λ = 3 along (1, 1)/√2 and 1 along (1, -1)/√2.
    let (a, b) = (1.5f32.sqrt() * 1.5f32.sqrt(), 0.75f32.sqrt() * 1f32);
    let rows = Tensor::new(&[[a, a], [-a, -a], [b, -b], [-b, b]], &Cpu)?;
    let pca = Pca::fit(&rows, None)?;
    let half = 0.5f64.sqrt();
    assert_close("first", &values(&pca.components().narrow(0, 0, 1)?), &[half, half], 1e-12);
    assert_close("variance", &values(pca.variance()), &[3., 1.], 1e-6);
    let one = Pca::fit(&rows, Some(1))?;
    assert!((one.explained()? - 0.75).abs() < 1e-7 && pca.explained()? == 1.);
    // Coordinates have the variances, uncorrelated; the back-projection is the nearest point of the
    // line.
    let mut moments = Moments::new(2, &Cpu)?;
    moments.add(&pca.transform(&rows)?)?;
    assert_close("covariance", &values(&moments.covariance()?), &[3., 0., 0., 1.], 1e-6);
    let near = one.inverse(&one.transform(&rows)?)?;
    let a = f64::from(a);
    assert_close("line", &values(&near), &[a, a, -a, -a, 0., 0., 0., 0.], 1e-6);

    let tensors = one.tensors("pca")?;
    let loaded = Pca::from_tensors(&tensors, "pca", &Cpu)?;
    assert_eq!(values(&loaded.transform(&rows)?), values(&one.transform(&rows)?));
    assert_eq!(loaded.explained()?, one.explained()?);
    assert_eq!(
        message(Pca::fit(&rows, Some(3))),
        "Pca: n_components must be between 1 and n_features = 2, got 3"
    );

    // f32 has no numbers between 1e8 and 1e8 + 8.
    let far = (rows.to_dtype(DType::F64)? + 1e8)?;
    assert_close("variance far from 0", &values(Pca::fit(&far, None)?.variance()), &[3., 1.], 1e-6);
    assert_eq!(values(Pca::fit(&far.to_dtype(DType::F32)?, None)?.variance()), [0., 0.]);
    let huge = (rows.to_dtype(DType::F64)? * 1e300)?;
    assert_eq!(
        message(Pca::fit(&huge, None)),
        "Pca: the covariance of the rows must be finite; scale the rows down"
    );
    Ok(())
}

#[test]
fn impossible_preparations_are_refused() {
    for bad in [
        "1.0",
        "true",
        "{\"byte_scale\":0,\"steps\":[]}",
        "{\"byte_scale\":1,\"steps\":[{\"step\":\"scale\",\"factor\":-1}]}",
    ] {
        assert!(serde_json::from_str::<Preparation>(bad).is_err(), "{bad}");
    }
}
