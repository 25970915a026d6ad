//! Ties are broken by a draw, given neighbours are looked at, and perplexities fit the rows.
use super::{CPU, message, tsne};
use candle::{DType, Result, Tensor};
use chandlery::tsne::{
    GivenNeighbours, Metric, Neighbours, TransformConfig, TsneConfig, TsneTrainer, WrongNeighbours,
};
use chandlery::{FullBatchTrainer, Philox, Trainer};
use chandlery_ops::core::normal;
use chandlery_ops::tsne::knn;

/// How many edges each row has.
fn degrees(rows: &Tensor, k: usize, metric: Metric, seed: u64) -> Result<Vec<f64>> {
    let config =
        TsneConfig { perplexity: k as f64 / 3., neighbours: Some(k), metric, ..TsneConfig::default() };
    let run = TsneTrainer::new(config, Philox::new(seed, 0), rows)?;
    let offsets = run.affinities().offsets.to_vec1::<u32>()?;
    Ok(offsets.windows(2).map(|pair| f64::from(pair[1] - pair[0])).collect())
}

/// Of numbers with their places.
fn correlation(of: &[f64]) -> f64 {
    let n = of.len() as f64;
    let mean = of.iter().sum::<f64>() / n;
    let centre = (n - 1.) / 2.;
    let place = |i: usize| i as f64 - centre;
    let both: f64 = of.iter().enumerate().map(|(i, x)| place(i) * (x - mean)).sum();
    let spread: f64 = of.iter().map(|x| (x - mean).powi(2)).sum();
    let places: f64 = (0..of.len()).map(|i| place(i).powi(2)).sum();
    both / (spread * places).sqrt().max(1e-300)
}

#[test]
fn rows_that_are_equally_far_are_drawn_whatever_their_numbers() -> Result<()> {
    let eye = Tensor::eye(200, DType::F32, &CPU)?;
    let zeros = Tensor::zeros((300, 4), DType::F32, &CPU)?;
    // Ten rows, each thirty times.
    let repeated = normal((10, 3), &CPU, Philox::new(72, 0))?.repeat((30, 1))?;
    // More than are drawn among.
    let many = Tensor::ones((5000, 2), DType::F32, &CPU)?;
    for (name, rows, k, metric) in [
        ("an identity", &eye, 30, Metric::Euclidean),
        ("an identity, Manhattan", &eye, 30, Metric::Manhattan),
        ("an identity, cosine", &eye, 30, Metric::Cosine),
        ("an identity, Jaccard", &eye, 30, Metric::Jaccard),
        ("an identity, Hamming", &eye, 30, Metric::Hamming),
        ("zeros, Jaccard", &zeros, 30, Metric::Jaccard),
        ("zeros, cosine", &zeros, 30, Metric::Cosine),
        ("zeros", &zeros, 12, Metric::Euclidean),
        ("repeated rows", &repeated, 9, Metric::Euclidean),
        ("many equal rows", &many, 6, Metric::Euclidean),
    ] {
        let degrees = degrees(rows, k, metric, 5)?;
        let n = degrees.len() as f64;
        // Each row has its own edges and about as many from others: their number is a count of many
        // small chances.
        let (most, least) =
            (degrees.iter().copied().fold(0., f64::max), degrees.iter().copied().fold(n, f64::min));
        let room = 6. * (k as f64).sqrt();
        assert!(most <= 2. * k as f64 + room, "{name}: {most} edges of one row, {k} neighbours");
        assert!(least >= k as f64, "{name}: {least}");
        let r = correlation(&degrees);
        assert!(r.abs() < 5. / n.sqrt(), "{name}: the number of edges follows the row number, r = {r}");
    }
    let (a, b) = (degrees(&eye, 30, Metric::Euclidean, 5)?, degrees(&eye, 30, Metric::Euclidean, 6)?);
    assert_ne!(a, b);
    assert_eq!(a, degrees(&eye, 30, Metric::Euclidean, 5)?);
    Ok(())
}

#[test]
fn a_draw_takes_only_rows_that_are_equally_far() -> Result<()> {
    // On a line, with the same distances to both sides: of the two fourth ones, one is drawn.
    let rows = Tensor::arange(0f32, 40., &CPU)?.unsqueeze(1)?;
    let config = TsneConfig { perplexity: 2., neighbours: Some(3), ..TsneConfig::default() };
    let mut sides = [0, 0];
    for seed in 0..4 {
        let run = TsneTrainer::new(config.clone(), Philox::new(seed, 0), &rows)?;
        let offsets = run.affinities().offsets.to_vec1::<u32>()?;
        let columns = run.affinities().columns.to_vec1::<u32>()?;
        for i in 4..36u32 {
            let row = &columns[offsets[i as usize] as usize..offsets[i as usize + 1] as usize];
            assert!(row.contains(&(i - 1)) && row.contains(&(i + 1)), "row {i}: {row:?}");
            let far = row.iter().filter(|&&j| i.abs_diff(j) > 2).collect::<Vec<_>>();
            assert!(far.is_empty(), "row {i}: {far:?}");
            sides[0] += usize::from(row.contains(&(i - 2)));
            sides[1] += usize::from(row.contains(&(i + 2)));
        }
    }
    // Both directions of an edge are in the graph.
    assert!(sides[0] > 60 && sides[1] > 60, "{sides:?}");
    Ok(())
}

#[test]
fn a_perplexity_too_large_for_few_rows_is_lowered_with_a_note() -> Result<()> {
    let rows = normal((50, 3), &CPU, Philox::new(72, 1))?;
    let config = TsneConfig { further_perplexities: vec![100., 5.], ..TsneConfig::default() };
    let run = TsneTrainer::new(config, Philox::new(7, 0), &rows)?;
    assert_eq!(run.config().perplexities(), [49. / 3., 49. / 3., 5.]);
    let notes =
        ["perplexity 30 was lowered to 16.33 for 50 rows", "perplexity 100 was lowered to 16.33 for 50 rows"];
    assert_eq!(run.notes(), notes);
    let folder = tempfile::tempdir()?;
    run.save(&folder.path().join("checkpoint"), &serde_json::Value::Null)?;
    let (again, _) = TsneTrainer::load(&folder.path().join("checkpoint"), &rows, &CPU)?;
    assert_eq!((again.notes(), again.recall()), (run.notes(), run.recall()));
    assert_eq!(run.recall().map(|recall| (recall.mean, recall.n_queries)), Some((1., 50)));
    let two = TsneTrainer::new(TsneConfig::default(), Philox::new(7, 0), &rows.narrow(0, 0, 2)?)?;
    assert_eq!(two.config().perplexity, 1.);
    let short = TsneConfig { early_iterations: 5, iterations: 5, ..TsneConfig::default() };
    let embedding = tsne(short).fit(&rows.narrow(0, 0, 9)?)?;
    let wide = TransformConfig { perplexity: 40., ..TransformConfig::default() };
    assert_eq!(embedding.transform_with(&rows, &wide)?.dims(), [50, 2]);
    assert!((wide.lowered(9).perplexity - 8. / 3.).abs() < 1e-12);
    Ok(())
}

#[test]
fn given_neighbours_that_make_no_sense_are_refused_by_row_and_column() {
    let (n, k) = (5usize, 3usize);
    let indices: Vec<i64> = (0..n).flat_map(|i| (1..=k).map(move |s| ((i + s) % n) as i64)).collect();
    let distances = [1., 2., 3.].repeat(n);
    let checked = |indices: &[i64], distances: &[f64]| GivenNeighbours { indices, distances, k }.checked();
    assert!(checked(&indices, &distances).is_ok_and(|of| of.notes.is_empty() && of.n() == n));
    for (wrong, text) in [
        (5, "must be from 0 to 4, got 5 in row 2, column 1"),
        (-1, "must be from 0 to 4, got -1 in row 2, column 1"),
        (i64::MAX, "must be from 0 to 4, got 9223372036854775807 in row 2, column 1"),
        (indices[6], "must hold a row once in a line, got 3 again in row 2, column 1"),
    ] {
        let mut indices = indices.clone();
        indices[2 * k + 1] = wrong;
        assert_eq!(checked(&indices, &distances), Err(WrongNeighbours::Indices(text.to_owned())));
    }
    for (wrong, text) in [
        (f64::NAN, "must be finite, got NaN in row 4, column 0"),
        (f64::INFINITY, "must be finite, got inf in row 4, column 0"),
        (-0.5, "must be at least 0, got -0.5 in row 4, column 0"),
    ] {
        let mut distances = distances.clone();
        distances[4 * k] = wrong;
        assert_eq!(checked(&indices, &distances), Err(WrongNeighbours::Distances(text.to_owned())));
    }
    assert!(checked(&indices, &distances[1..]).is_err() && checked(&indices[1..], &distances).is_err());
    // A row alone with itself has no neighbour.
    assert!(GivenNeighbours { indices: &[0, 1], distances: &[0., 0.], k: 1 }.checked().is_err());
}

#[test]
fn a_row_that_is_its_own_neighbour_is_left_out() -> Result<()> {
    let rows = normal((60, 4), &CPU, Philox::new(72, 2))?;
    let near = knn(&rows, 10, Metric::Euclidean)?;
    let (indices, distances) = (near.indices.to_vec2::<u32>()?, near.distances.to_vec2::<f32>()?);
    let made = |places: &dyn Fn(usize) -> Option<usize>, scale: f32| -> Result<TsneTrainer> {
        let (mut with, mut far) = (vec![], vec![]);
        for i in 0..60 {
            let (mut row, mut d) = (indices[i].clone(), distances[i].clone());
            match places(i) {
                Some(at) => {
                    row.insert(at, i as u32);
                    d.insert(at, 0.);
                }
                None => {
                    // The next farther one.
                    row.push((0..60).find(|j| *j != i as u32 && !row.contains(j)).unwrap_or(0));
                    d.push(100.);
                }
            }
            with.extend(row);
            far.extend(d.iter().map(|d| d * scale));
        }
        let given = Neighbours {
            indices: Tensor::from_vec(with, (60, 11), &CPU)?,
            distances: Tensor::from_vec(far, (60, 11), &CPU)?,
        };
        TsneTrainer::from_neighbours(
            TsneConfig { perplexity: 4., ..TsneConfig::default() },
            Philox::new(1, 0),
            &given,
        )
    };
    let config = TsneConfig { perplexity: 4., ..TsneConfig::default() };
    let want = TsneTrainer::from_neighbours(config, Philox::new(1, 0), &near)?;
    assert!(want.notes().is_empty());
    let same = |run: &TsneTrainer| -> Result<()> {
        let (a, b) = (run.affinities(), want.affinities());
        assert_eq!(a.columns.to_vec1::<u32>()?, b.columns.to_vec1::<u32>()?);
        assert_eq!(a.values.to_vec1::<f32>()?, b.values.to_vec1::<f32>()?);
        Ok(())
    };
    let first = made(&|_| Some(0), 1.)?;
    same(&first)?;
    assert_eq!(
        first.notes(),
        ["a row was its own neighbour: it was left out, and 10 neighbours of each row remain"]
    );
    let anywhere = made(&|i| Some(i % 11), 1.)?;
    same(&anywhere)?;
    assert!(anywhere.notes()[0].contains("sorted"), "{:?}", anywhere.notes());
    let some = made(&|i| (i % 3 > 0).then_some(0), 1.)?;
    same(&some)?;
    assert!(some.notes()[0].contains("in 40 of 60 rows"), "{:?}", some.notes());
    let bad = Neighbours { distances: (&near.distances * f64::NAN)?, ..near.clone() };
    let error = message(TsneTrainer::from_neighbours(TsneConfig::default(), Philox::new(1, 0), &bad));
    assert!(error.contains("distances must be finite, got NaN in row 0, column 0"), "{error}");
    // Fewer neighbours than the perplexity.
    let few = TsneTrainer::from_neighbours(TsneConfig::default(), Philox::new(1, 0), &near)?;
    assert_eq!(few.notes(), ["perplexity 30 was lowered to 3.33 for 10 neighbours of a row"]);
    Ok(())
}
