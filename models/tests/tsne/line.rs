//! Layouts in one dimension, and runs over the distances of all pairs.
use super::{CPU, groups, message, short, tsne};
use candle::{D, DType, Result, Tensor};
use chandlery::evaluation::layout::Measures;
use chandlery::tsne::measure::TrueDistances;
use chandlery::tsne::{
    Embedding, GivenDistances, Method, Metric, Start, TransformConfig, TsneConfig, TsneTrainer,
    WrongNeighbours, measure,
};
use chandlery::{FullBatchTrainer, LoadOptions, Model, Philox, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::tsne::{Repulsion, RepulsionMethod};

/// The sums over all pairs of points on a line, in f64.
fn on_a_line(points: &[f32], alpha: f64) -> (Vec<f64>, f64) {
    let mut total = 0.;
    let force = |(i, &a): (usize, &f32)| {
        let others = points.iter().enumerate().filter(|&(j, _)| j != i);
        others.fold(0., |force, (_, &b)| {
            let apart = f64::from(a) - f64::from(b);
            let near = 1. / (1. + apart * apart / alpha);
            total += near.powf(alpha);
            force + near.powf(alpha + 1.) * apart
        })
    };
    let forces: Vec<f64> = points.iter().enumerate().map(force).collect();
    (forces, total)
}

#[test]
fn forces_between_points_of_a_line_stay_on_it() -> Result<()> {
    let n = 700;
    let line = (normal(n, &CPU, Philox::new(74, 0))? * 9.)?;
    let plane = Tensor::stack(&[&line, &line.zeros_like()?], 1)?;
    let points = line.to_vec1::<f32>()?;
    for alpha in [0.5f32, 1., 3.] {
        let (wanted, weight) = on_a_line(&points, alpha.into());
        let largest = wanted.iter().fold(0f64, |most, f| most.max(f.abs()));
        for (method, room) in [
            (RepulsionMethod::Exact, 1e-5),
            (RepulsionMethod::Tree { theta: 0. }, 1e-5),
            (RepulsionMethod::Tree { theta: 0.5 }, 0.05),
        ] {
            let repulsion = Repulsion::new(method, n, 2, alpha, &CPU)?;
            let (forces, total) = (plane.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
            repulsion.repulsion_(&forces, &total, &plane)?;
            for (i, force) in forces.to_vec2::<f32>()?.iter().enumerate() {
                assert_eq!(force[1], 0., "{method:?}, alpha {alpha}, point {i}");
                let off = (f64::from(force[0]) - wanted[i]).abs();
                assert!(off <= room * largest, "{method:?}, alpha {alpha}, point {i}: off by {off}");
            }
            let total = total.to_vec1::<f64>()?[0];
            assert!(
                (total - weight).abs() <= room * weight,
                "{method:?}, alpha {alpha}: {total}, not {weight}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_line_tells_groups_apart_is_measured_saved_and_takes_new_rows() -> Result<()> {
    let (rows, labels) = groups(60)?;
    for (method, start) in
        [(Method::Exact, Start::Pca), (Method::BarnesHut, Start::Pca), (Method::Exact, Start::Spectral)]
    {
        let config = TsneConfig { n_dims: 1, start, ..short(method) };
        let embedding = tsne(config.clone()).fit(&rows)?;
        assert_eq!(embedding.layout().dims(), [180, 1]);
        let accuracy = measure::knn_label_accuracy(embedding.layout(), &labels, 5)?;
        assert!(accuracy > 0.9, "{method:?}: label accuracy {accuracy}");
        // In the plane the same points have the same divergence.
        let kl = measure::true_kl(&rows, embedding.layout(), &config, Philox::new(7, 0))?;
        let plane = Tensor::cat(&[embedding.layout(), &embedding.layout().zeros_like()?], 1)?;
        assert_eq!(kl, measure::true_kl(&rows, &plane, &short(method), Philox::new(7, 0))?);
        let folder = tempfile::tempdir()?;
        embedding.save_pretrained(folder.path())?;
        let back = Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
        let placed = back.transform_with(&rows, &TransformConfig::default())?;
        assert_eq!(placed.dims(), [180, 1]);
        let far = (placed - embedding.layout())?.abs()?.flatten_all()?.to_vec1::<f32>()?;
        let span = embedding.layout().max(0)?.sub(&embedding.layout().min(0)?)?.to_vec1::<f32>()?[0];
        let mean = far.iter().sum::<f32>() / 180.;
        assert!(mean < 0.05 * span, "{method:?}: rows come back {mean} from where they are, of {span}");
    }
    let error = message(tsne(TsneConfig { n_dims: 1, ..short(Method::Fft) }).fit(&rows));
    assert!(error.contains("the method fft is for 2 dimensions, got 1; use barnes-hut or exact"), "{error}");
    assert_eq!(TsneConfig { n_dims: 1, ..TsneConfig::default() }.method_for(5000, false), Method::BarnesHut);
    Ok(())
}

#[test]
fn a_line_goes_on_from_a_checkpoint_to_the_same_bits() -> Result<()> {
    let (rows, _) = groups(30)?;
    let folder = tempfile::tempdir()?;
    for method in [Method::Exact, Method::BarnesHut] {
        let config = TsneConfig { n_dims: 1, ..short(method) };
        let mut run = TsneTrainer::new(config, Philox::new(7, 0), &rows)?;
        let path = folder.path().join("checkpoint");
        for _ in 0..3 {
            run.step()?;
        }
        run.save(&path, &serde_json::Value::Null)?;
        let (mut again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
        for run in [&mut run, &mut again] {
            while run.step()?.is_some() {}
        }
        assert_eq!(run.layout()?.to_vec2::<f32>()?, again.layout()?.to_vec2::<f32>()?, "{method:?}");
        assert_eq!(again.layout()?.dims(), [90, 1]);
    }
    Ok(())
}

/// Euclidean distances of all pairs, f64.
fn all_distances(rows: &Tensor) -> Result<Vec<f64>> {
    let rows = rows.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    Ok(rows.iter().flat_map(|a| rows.iter().map(|b| distance(a, b)).collect::<Vec<_>>()).collect())
}

#[test]
fn a_matrix_of_distances_gives_the_affinities_of_the_rows() -> Result<()> {
    let (rows, labels) = groups(40)?;
    let all = all_distances(&rows)?;
    let config = short(Method::Exact);
    let of_rows = TsneTrainer::new(config.clone(), Philox::new(7, 0), &rows)?;
    // No unit changes affinities of a perplexity, and what stands for a row itself is not looked
    // at.
    for unit in [1., 1e-40, 1e60] {
        let mut all: Vec<f64> = all.iter().map(|d| d * unit).collect();
        (0..120).for_each(|i| all[i * 121] = [0., -1., f64::NAN][i % 3]);
        let matrix = Tensor::from_vec(all, (120, 120), &CPU)?;
        let mut run = TsneTrainer::from_distances(config.clone(), Philox::new(7, 0), &matrix)?;
        let (a, b) = (of_rows.affinities(), run.affinities());
        assert_eq!(a.offsets.to_vec1::<u32>()?, b.offsets.to_vec1::<u32>()?);
        assert_eq!(a.columns.to_vec1::<u32>()?, b.columns.to_vec1::<u32>()?);
        let off = (&a.values - &b.values)?.abs()?.max(D::Minus1)?.to_scalar::<f32>()?;
        assert!(off < 1e-7, "{unit}: {off}");
        while run.step()?.is_some() {}
        let embedding = run.model()?;
        assert!(measure::knn_label_accuracy(embedding.layout(), &labels, 5)? > 0.98, "{unit}");
        assert!(embedding.rows().is_none());
    }
    Ok(())
}

#[test]
fn measures_of_a_matrix_are_those_of_the_rows_that_it_is_of() -> Result<()> {
    // Whole numbers have many equal distances, and the squares of theirs are exact; some rows are
    // there twice.
    let whole = (uniform((75, 3), &CPU, Philox::new(74, 2))? * 6.)?.floor()?;
    let rows = Tensor::cat(&[&whole, &whole.narrow(0, 0, 25)?], 0)?;
    let mut all = all_distances(&rows)?;
    (0..100).for_each(|i| all[i * 101] = f64::NAN);
    let matrix = TrueDistances::Matrix(GivenDistances { all: &all, n: 100 });
    let of_rows = TrueDistances::Rows(&rows, Metric::Euclidean);
    let labels: Vec<u32> = (0..100).map(|i| i % 3).collect();
    for layout in [normal((100, 2), &CPU, Philox::new(74, 3))?, rows.narrow(1, 0, 2)?.contiguous()?] {
        for sample in [100, 30] {
            let of = |truth| Measures::of_sample(truth, Some(&labels), &layout, None, sample, &mut |_| {});
            let (got, want) = (of(matrix)?, of(of_rows)?);
            assert!(want.trustworthiness.is_some() && want.knn_recall.is_some());
            assert_eq!(got, want, "{sample}");
        }
    }
    // A line is of its own row: seen from each, the others are in the order of their numbers.
    let lines: Vec<f64> = (0..100 * 100).map(|at| f64::from(at % 100)).collect();
    let line = Tensor::arange(0f32, 100., &CPU)?.unsqueeze(1)?;
    let near = |all| measure::knn_recall(TrueDistances::Matrix(GivenDistances { all, n: 100 }), &line, 1);
    // Only the nearest points of rows 0 (1) and 1 (0) are their nearest rows.
    assert!((near(&lines)? - 0.02).abs() < 1e-12, "{}", near(&lines)?);
    let wrong = message(near(&lines[1..]));
    assert!(wrong.starts_with("knn_recall: distances must be those of all pairs of 100 rows"), "{wrong}");
    let mut wrong = lines.clone();
    (wrong[205], wrong[907]) = (-1., f64::NAN);
    let wrong = message(near(&wrong));
    assert!(
        wrong.starts_with("knn_recall: distances must be at least 0, got -1 in row 2, column 5"),
        "{wrong}"
    );
    let layout = line.narrow(0, 0, 99)?;
    let wrong = message(measure::trustworthiness(matrix, &layout, 5, 99));
    assert!(wrong.starts_with("trustworthiness: layout must have 100 points"), "{wrong}");
    Ok(())
}

#[test]
fn lines_of_distances_are_of_their_own_rows_and_ties_are_drawn() -> Result<()> {
    let n = 150usize;
    // Row i is near to the rows after it, and they are not near to it.
    let all: Vec<f64> = (0..n * n).map(|at| ((at % n + n - at / n) % n) as f64).collect();
    let near = GivenDistances { all: &all, n }.nearest(3, Philox::new(7, 0)).map_err(candle::Error::wrap)?;
    let near = near.to_device(&CPU)?;
    for (i, line) in near.indices.to_vec2::<u32>()?.iter().enumerate() {
        assert_eq!(*line, [1, 2, 3].map(|step| ((i + step) % n) as u32));
    }
    assert_eq!(near.distances.to_vec2::<f32>()?[7], [1., 2., 3.]);
    // All are as far from all: the number of a row does not make it a neighbour more often.
    let equal = vec![2f64; n * n];
    let given = GivenDistances { all: &equal, n };
    let drawn = |seed| -> Result<Vec<u32>> {
        let near = given.nearest(10, Philox::new(seed, 0)).map_err(candle::Error::wrap)?;
        near.to_device(&CPU)?.indices.flatten_all()?.to_vec1()
    };
    let counts = drawn(1)?.iter().fold(vec![0u32; n], |mut counts, &j| {
        counts[j as usize] += 1;
        counts
    });
    assert!(counts.iter().all(|&count| count < 30), "{counts:?}");
    assert_eq!(drawn(1)?, drawn(1)?);
    assert_ne!(drawn(1)?, drawn(2)?);
    Ok(())
}

#[test]
fn distances_that_make_no_sense_are_named() -> Result<()> {
    let rows = uniform((12, 3), &CPU, Philox::new(74, 1))?;
    let all = all_distances(&rows)?;
    let with = |at: usize, d: f64| {
        let mut all = all.clone();
        all[at] = d;
        let near = GivenDistances { all: &all, n: 12 }.nearest(3, Philox::new(7, 0));
        near.err().map_or_else(String::new, |wrong| wrong.to_string())
    };
    assert_eq!(with(2 * 12 + 5, f64::NAN), "distances must be finite, got NaN in row 2, column 5");
    assert_eq!(with(11 * 12, f64::INFINITY), "distances must be finite, got inf in row 11, column 0");
    assert_eq!(with(1, -0.5), "distances must be at least 0, got -0.5 in row 0, column 1");
    assert_eq!(with(13, -0.5), "", "the place of row 1 itself is not looked at");
    let given = GivenDistances { all: &all, n: 12 };
    for (k, want) in [
        (0, "must be in 1..=11 for 12 rows, got 0 of each"),
        (12, "must be in 1..=11 for 12 rows, got 12 of each"),
    ] {
        assert_eq!(
            given.nearest(k, Philox::new(7, 0)).err(),
            Some(WrongNeighbours::Indices(want.to_owned()))
        );
    }
    let short = GivenDistances { all: &all[1..], n: 12 }.nearest(3, Philox::new(7, 0));
    let want = "must be those of all pairs of 12 rows, 144, got 143".to_owned();
    assert_eq!(short.err(), Some(WrongNeighbours::Distances(want)));
    let matrix = Tensor::from_vec(all, (12, 12), &CPU)?;
    let error = message(TsneTrainer::from_distances(
        TsneConfig::default(),
        Philox::new(7, 0),
        &matrix.narrow(1, 0, 11)?,
    ));
    let want = "TsneTrainer: distances must be of all pairs of rows, [12, 12], got [12, 11]";
    assert!(error.starts_with(want), "{error}");
    let run = TsneTrainer::from_distances(TsneConfig::default(), Philox::new(7, 0), &matrix)?;
    assert!(run.notes()[0].starts_with("perplexity 30 was lowered to 3.6"), "{:?}", run.notes());
    Ok(())
}
