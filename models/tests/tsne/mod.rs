//! t-SNE as a model: what is refused, how it learns, how new rows find their places (transform),
//! and the measures by hand.
mod affinity;
mod changes;
mod doubt;
mod line;
mod measures;
mod neighbours;
mod spectral;
mod transform;
mod unique;

use candle::{DType, Device, Result, Tensor};
use chandlery::tsne::measure::{self, TrueDistances};
use chandlery::tsne::{Embedding, Method, Metric, Tsne, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, LoadOptions, Model, Philox, Trainer};
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;
const EUCLIDEAN: Metric = Metric::Euclidean;

fn message<T>(result: Result<T>) -> String {
    result.err().map_or_else(String::new, |e| e.to_string())
}

fn tsne(config: TsneConfig) -> Tsne {
    Tsne { config, philox: Philox::new(7, 0) }
}

/// Three groups of `each` rows and their labels.
fn groups(each: usize) -> Result<(Tensor, Tensor)> {
    let labels = Tensor::new((0..3 * each).map(|i| (i % 3) as u32).collect::<Vec<_>>(), &CPU)?;
    let centres = (normal((3, 8), &CPU, Philox::new(7, 1))? * 6.)?;
    Ok(((centres.index_select(&labels, 0)? + normal((3 * each, 8), &CPU, Philox::new(7, 2))?)?, labels))
}

fn short(method: Method) -> TsneConfig {
    TsneConfig {
        perplexity: 10.,
        method: Some(method),
        early_iterations: 100,
        iterations: 150,
        ..TsneConfig::default()
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() -> Result<()> {
    let rows = uniform((10, 3), &CPU, Philox::new(7, 3))?;
    let fit = |config: TsneConfig, rows: &Tensor| message(tsne(config).fit(rows));
    let error = fit(TsneConfig::default(), &rows.narrow(0, 0, 1)?);
    assert!(error.contains("rows must be at least 2, got 1"), "{error}");
    let error = fit(TsneConfig { n_dims: 3, method: Some(Method::Fft), ..TsneConfig::default() }, &rows);
    assert!(error.contains("barnes-hut or exact"), "{error}");
    let error = fit(TsneConfig { perplexity: 3., neighbours: Some(2), ..TsneConfig::default() }, &rows);
    assert!(error.contains("neighbours must be in 3..=9"), "{error}");
    let error = message(TsneTrainer::new(
        TsneConfig { perplexity: 3., learning_rate: Some(-1.), ..TsneConfig::default() },
        Philox::new(7, 4),
        &rows,
    ));
    assert!(error.contains("learning_rate must be above 0"), "{error}");
    let mut values = vec![0.5f32; 40];
    values[5 * 4 + 2] = f32::NAN;
    let rows = Tensor::from_vec(values, (10, 4), &CPU)?;
    let error = fit(TsneConfig { perplexity: 1., ..TsneConfig::default() }, &rows);
    assert!(error.contains("row 5, column 2"), "{error}");
    Ok(())
}

#[test]
fn a_few_rows_and_rows_that_do_not_vary_have_finite_layouts() -> Result<()> {
    for n in 2..=10 {
        for rows in [uniform((n, 3), &CPU, Philox::new(7, 5))?, Tensor::full(4f32, (n, 3), &CPU)?] {
            for n_dims in [1, 2, 3] {
                let config = TsneConfig { n_dims, perplexity: 1., ..TsneConfig::default() };
                let layout = tsne(config).fit(&rows)?.layout().flatten_all()?.to_vec1::<f32>()?;
                assert!(layout.iter().all(|y| y.is_finite()), "{n} rows: {layout:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn groups_are_told_apart_by_every_method_and_not_by_chance() -> Result<()> {
    let (rows, labels) = groups(60)?;
    let methods = [(Method::Exact, 2), (Method::Fft, 2), (Method::BarnesHut, 2), (Method::BarnesHut, 3)];
    for (method, n_dims) in methods {
        let embedding = tsne(TsneConfig { n_dims, ..short(method) }).fit(&rows)?;
        let accuracy = measure::knn_label_accuracy(embedding.layout(), &labels, 5)?;
        assert!(accuracy > 0.98, "{method:?}: label accuracy {accuracy}");
        let chance = normal((180, n_dims), &CPU, Philox::new(7, 6))?;
        let of = TrueDistances::Rows(&rows, EUCLIDEAN);
        let trust = measure::trustworthiness(of, embedding.layout(), 5, 180)?;
        let by_chance = measure::trustworthiness(of, &chance, 5, 180)?;
        assert!(trust > by_chance + 0.2, "{method:?}: {trust}, by chance {by_chance}");
        let kl = |layout| measure::true_kl(&rows, layout, &short(method), Philox::new(7, 0));
        let (kl, by_chance) = (kl(embedding.layout())?, kl(&chance)?);
        assert!(kl < 0.6 * by_chance, "{method:?}: {kl}, by chance {by_chance}");
    }
    Ok(())
}

#[test]
fn the_descent_ends_where_the_divergence_falls_too_little() -> Result<()> {
    let (rows, _) = groups(40)?;
    let config = TsneConfig { iterations: 600, ..short(Method::Exact) };
    let run = |stop_below| -> Result<TsneTrainer> {
        TsneTrainer::new(TsneConfig { stop_below, ..config.clone() }, Philox::new(7, 5), &rows)
    };
    let rest = |run: &mut TsneTrainer| -> Result<Vec<_>> {
        let mut seen = vec![];
        while let Some(progress) = run.step()? {
            seen.push(progress);
        }
        Ok(seen)
    };
    let all = rest(&mut run(None)?)?;
    assert_eq!(all.last().map(|last| last.iteration), Some(700));
    for pair in all.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let fall = (from.kl - to.kl) / (to.iteration - from.iteration) as f64;
        assert!(to.fall.is_some_and(|told| (told - fall).abs() < 1e-12), "{to:?}, not {fall}");
    }
    assert_eq!(all[0].fall, None);
    // More than at the second check after the early iterations, and less than at the first.
    let late: Vec<_> = all.iter().filter(|progress| progress.iteration > 100).collect();
    let falls: Vec<f64> = late.iter().filter_map(|progress| progress.fall).collect();
    assert!(falls[0] > 2. * falls[1] && falls[1] > 0., "{falls:?}");
    let least = Some((falls[0] + falls[1]) / 2.);
    let mut ended = run(least)?;
    let seen = rest(&mut ended)?;
    assert_eq!(seen.last(), Some(late[1]));
    assert!(all.starts_with(&seen), "the same descent");
    // A run that is taken up again ends where it would have.
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let mut first = run(least)?;
    while first.iteration() < late[0].iteration {
        first.step()?;
    }
    first.save(&path, &serde_json::Value::Null)?;
    let (mut again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
    assert_eq!(rest(&mut again)?.last(), Some(late[1]));
    let error = message(run(Some(0.)));
    assert!(error.contains("stop_below must be above 0"), "{error}");
    Ok(())
}

#[test]
fn measures_are_those_of_a_hand_count() -> Result<()> {
    // On a line; the layout has places 0 to 4 on one, and swaps rows 1 and 3.
    let rows = Tensor::new(&[[0f32], [1.], [3.], [7.], [15.]], &CPU)?;
    let layout = Tensor::new(&[[0f32, 0.], [3., 0.], [2., 0.], [1., 0.], [4., 0.]], &CPU)?;
    let of = |rows| TrueDistances::Rows(rows, EUCLIDEAN);
    assert!((measure::trustworthiness(of(&rows), &rows, 1, 5)? - 1.).abs() < 1e-12);
    // The nearest points are 0 → 3 (rank 3), 1 → 2 (2), 2 → 1 (1), 3 → 0 (3) and 4 → 1 (3), by 2,
    // 1, 0, 2 and 2 beyond the first.
    let trust = measure::trustworthiness(of(&rows), &layout, 1, 5)?;
    assert!((trust - (1. - 14. / 30.)).abs() < 1e-12, "{trust}");
    // Places at equal distances: the nearest of the three in the middle are two each, of rank 1½.
    let even = Tensor::arange(0f32, 5., &CPU)?.unsqueeze(1)?;
    let trust = measure::trustworthiness(of(&even), &even, 1, 5)?;
    assert!((trust - (1. - 3. / 30.)).abs() < 1e-12, "{trust}");
    // Each of the two is the nearest by half.
    let recall = measure::knn_recall(of(&even), &even, 1)?;
    assert!((recall - 3.5 / 5.).abs() < 1e-12, "{recall}");
    // The nearest rows are 1, 0, 1, 2 and 3: one of the points above is the same.
    let recall = measure::knn_recall(of(&rows), &layout, 1)?;
    assert!((recall - 0.2).abs() < 1e-12, "{recall}");
    let labels = Tensor::new(&[0u32, 1, 1, 0, 1], &CPU)?;
    assert!((measure::knn_label_accuracy(&layout, &labels, 1)? - 1.).abs() < 1e-12);
    Ok(())
}

#[test]
fn an_embedding_comes_back_with_the_rows_that_it_compares_with() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let rows = (uniform((40, 6), &CPU, Philox::new(7, 9))? * 255.)?.to_dtype(DType::U8)?;
    let config = TsneConfig { perplexity: 5., early_iterations: 20, iterations: 20, ..TsneConfig::default() };
    let embedding = tsne(config).fit(&rows)?;
    embedding.save_pretrained(folder.path())?;
    let back = Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert_eq!(back.config(), embedding.config());
    assert_eq!(back.layout().to_vec2::<f32>()?, embedding.layout().to_vec2::<f32>()?);
    assert_eq!(back.rows().map(|rows| rows.dtype()), Some(DType::U8));
    assert_eq!(back.transform(&rows)?.to_vec2::<f32>()?, embedding.transform(&rows)?.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn measures_compare_rows_by_the_metric() -> Result<()> {
    // From the first row the others are at Euclidean distances 3, √13 and 4, Manhattan ones 3, 5
    // and 4, and Chebyshev ones 3, 3 and 4. The layout has the order 1, 3, 2 of the Manhattan
    // distance.
    let rows = Tensor::new(&[[0f32, 0.], [3., 0.], [2., 3.], [0., -4.]], &CPU)?;
    let layout = Tensor::new(&[[0f32, 0.], [3., 0.], [5., 0.], [-4., 0.]], &CPU)?;
    let recall = |metric| measure::knn_recall(TrueDistances::Rows(&rows, metric), &layout, 2);
    assert!(recall(Metric::Manhattan)? > recall(EUCLIDEAN)?);
    for metric in [EUCLIDEAN, Metric::Cosine, Metric::Correlation, Metric::Manhattan, Metric::Chebyshev] {
        // A layout that is the rows is as good as can be where distances are those of the layout;
        // all are within range.
        let rows = normal((60, 2), &CPU, Philox::new(7, 12))?;
        let trust = measure::trustworthiness(TrueDistances::Rows(&rows, metric), &rows, 5, 60)?;
        let config = TsneConfig { perplexity: 10., metric, ..TsneConfig::default() };
        let kl = measure::true_kl(&rows, &rows, &config, Philox::new(7, 0))?;
        assert!((0. ..=1.).contains(&trust) && kl.is_finite(), "{metric:?}: {trust} {kl}");
        assert_eq!(trust == 1., metric == EUCLIDEAN, "{metric:?}: {trust}");
        if matches!(metric, Metric::Manhattan | Metric::Chebyshev) {
            assert!(trust > 0.97, "{metric:?}: {trust}");
        }
    }
    Ok(())
}

#[test]
fn every_metric_lays_groups_out_places_new_rows_and_is_saved() -> Result<()> {
    let (rows, labels) = groups(40)?;
    for (metric, name) in [
        (Metric::Cosine, "cosine"),
        (Metric::Correlation, "correlation"),
        (Metric::Manhattan, "manhattan"),
        (Metric::Chebyshev, "chebyshev"),
        (Metric::Hamming, "hamming"),
        (Metric::Jaccard, "jaccard"),
    ] {
        // Categories, and sets, of what is above the mean.
        let rows = match metric {
            Metric::Hamming | Metric::Jaccard => {
                rows.ge(&rows.mean_keepdim(0)?.broadcast_as(rows.shape())?)?.to_dtype(DType::F32)?
            }
            _ => rows.clone(),
        };
        let embedding = tsne(TsneConfig { metric, ..short(Method::Exact) }).fit(&rows)?;
        let accuracy = measure::knn_label_accuracy(embedding.layout(), &labels, 5)?;
        assert!(accuracy > 0.95, "{metric:?}: label accuracy {accuracy}");
        let both = Tensor::cat(&[embedding.layout(), &embedding.transform(&rows)?], 0)?;
        let twice = Tensor::cat(&[&labels, &labels], 0)?;
        assert!(measure::knn_label_accuracy(&both, &twice, 7)? > 0.95, "{metric:?}");
        let folder = tempfile::tempdir()?;
        embedding.save_pretrained(folder.path())?;
        let config = std::fs::read_to_string(folder.path().join("config.json"))?;
        assert!(config.contains(&format!("\"metric\": \"{name}\"")), "{config}");
        let back = Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
        assert_eq!(back.config().metric, metric);
    }
    Ok(())
}

#[test]
fn a_first_layout_by_principal_components_is_that_of_rows_of_any_scale_and_place() -> Result<()> {
    let plain = (normal((100, 6), &CPU, Philox::new(7, 20))? * 4.)?.round()?;
    // Columns of clearly different variance.
    let widths = Tensor::new(&[32f32, 12., 4., 1., 1., 1.], &CPU)?;
    let plain = plain.broadcast_mul(&widths)?;
    let first = |rows: &Tensor| -> Result<Vec<f64>> {
        let run = TsneTrainer::new(
            TsneConfig { perplexity: 9., ..TsneConfig::default() },
            Philox::new(7, 21),
            rows,
        )?;
        run.layout()?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
    };
    let want = first(&plain)?;
    for (name, rows) in [
        ("times 2^100", (&plain * 100f64.exp2())?),
        ("times 2^-110", (&plain * (-110f64).exp2())?),
        ("plus 2^20", (&plain + 20f64.exp2())?),
    ] {
        for (at, (a, b)) in first(&rows)?.iter().zip(&want).enumerate() {
            assert!((a - b).abs() < 1e-7, "{name}: coordinate {at} is {a}, want {b}");
        }
    }
    Ok(())
}
