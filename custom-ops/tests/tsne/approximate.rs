//! The search in cells.
use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use chandlery_ops::tsne::{ApproximateNeighbours, Metric, Neighbours, knn, knn_approximate, knn_of};

const AT: Philox = Philox::new(7, 91);

fn search(rows: &Tensor, k: usize, metric: Metric, recall: f64) -> Result<ApproximateNeighbours> {
    let found = knn_approximate(rows, k, metric, recall, AT)?;
    check_lists(&found.neighbours)?;
    Ok(found)
}

/// Lists hold each row once, not the row itself, by distance and row.
fn check_lists(found: &Neighbours) -> Result<()> {
    let (indices, distances) = (found.indices.to_vec2::<u32>()?, found.distances.to_vec2::<f32>()?);
    for (i, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
        let mut once = indices.clone();
        once.sort_unstable();
        once.dedup();
        assert!(once.len() == indices.len() && !indices.contains(&(i as u32)), "row {i}: {indices:?}");
        assert!(distances.is_sorted() && distances.iter().all(|d| d.is_finite()), "row {i}: {distances:?}");
    }
    Ok(())
}

/// The share of neighbours, of every eighth row, that are no farther than the true ones.
fn share(rows: &Tensor, found: &Neighbours, metric: Metric) -> Result<f64> {
    let (n, k) = found.indices.dims2()?;
    let eighth = Tensor::arange_step(0u32, n as u32, 8, &CPU)?;
    // A query is a row, too, and near itself: its neighbours are those after it.
    let exact = knn_of(&rows.index_select(&eighth, 0)?, rows, k + 1, metric)?.distances.to_vec2::<f32>()?;
    let found = found.distances.index_select(&eighth, 0)?.to_vec2::<f32>()?;
    let right = |(found, exact): (&Vec<f32>, &Vec<f32>)| found.iter().filter(|&d| *d <= exact[k]).count();
    Ok(found.iter().zip(&exact).map(right).sum::<usize>() as f64 / (k * exact.len()) as f64)
}

#[test]
fn the_recall_that_is_wanted_is_held_and_told() -> Result<()> {
    let rows = gaussian(12_000, 8, 100)?;
    let mut looked_at = 0.;
    for wanted in [0.5, 0.8, 0.95] {
        let found = search(&rows, 15, Metric::Euclidean, wanted)?;
        let (share, told) = (share(&rows, &found.neighbours, Metric::Euclidean)?, found.recall);
        assert!(told.mean >= wanted && told.n_queries == 512, "{wanted}: {told:?}");
        // The interval of 95 in 100 draws, and as much again.
        let [low, high] = told.interval;
        let room = high - low;
        assert!(low < high && (low - room..high + room).contains(&share), "{wanted}: {share}, {told:?}");
        assert!(found.looked_at > looked_at && found.looked_at < 0.6, "{wanted}: {}", found.looked_at);
        looked_at = found.looked_at;
    }
    Ok(())
}

#[test]
fn all_that_is_wanted_and_few_rows_are_searched_exactly() -> Result<()> {
    for (n, wanted) in [(4200, 1.), (3000, 0.5)] {
        let rows = gaussian(n, 5, 101)?;
        let (found, exact) =
            (search(&rows, 9, Metric::Euclidean, wanted)?, knn(&rows, 9, Metric::Euclidean)?);
        assert_eq!(found.neighbours.indices.to_vec2::<u32>()?, exact.indices.to_vec2::<u32>()?);
        assert_eq!((found.recall.mean, found.recall.n_queries, found.looked_at), (1., n, 1.));
    }
    Ok(())
}

#[test]
fn each_metric_finds_its_nearest() -> Result<()> {
    // Rows of few directions and many features.
    for rows in [low_rank(5200, 330, 5, 90)?, gaussian(6000, 4, 102)?] {
        for metric in Metric::ALL {
            let found = search(&rows, 12, metric, 0.9)?;
            let share = share(&rows, &found.neighbours, metric)?;
            assert!(share > 0.87 && found.recall.mean >= 0.9, "{metric:?}: {share}, {:?}", found.recall);
        }
    }
    Ok(())
}

/// Clusters far from each other and tight, half of the rows a dense far cluster, and scales whose
/// squares f32 does not hold.
#[test]
fn rows_of_any_place_and_scale_are_told_apart() -> Result<()> {
    let noise = gaussian(6000, 10, 103)?;
    let centres = (gaussian(6, 10, 104)? * 1e4)?;
    let of = Tensor::arange(0u32, 6000, noise.device())?.to_vec1::<u32>()?;
    let far = Tensor::new(of.iter().map(|i| i % 6).collect::<Vec<u32>>(), noise.device())?;
    let far = ((&noise * 0.1)? + centres.index_select(&far, 0)?)?;
    let half =
        Tensor::cat(&[&(noise.narrow(0, 0, 3000)? * 1e-3)?, &(noise.narrow(0, 3000, 3000)? + 100.)?], 0)?;
    for (what, rows) in [
        ("far and tight", far),
        ("half is dense", half),
        ("1e-25", (&noise * 1e-25)?),
        ("1e18", (&noise * 1e18)?),
    ] {
        for metric in [Metric::Euclidean, Metric::Manhattan, Metric::Cosine] {
            let found = search(&rows, 10, metric, 0.9)?;
            let share = share(&rows, &found.neighbours, metric)?;
            assert!(
                share > 0.87 && found.recall.mean >= 0.9,
                "{what}, {metric:?}: {share}, {:?}",
                found.recall
            );
        }
    }
    Ok(())
}

/// Nearly all rows are equal: nearly all cells are empty, and one holds too many rows.
#[test]
fn equal_rows_are_at_no_distance_from_each_other() -> Result<()> {
    let equal = Tensor::ones((4600, 3), DType::F32, &CPU)?;
    let rows = Tensor::cat(&[&equal, &gaussian(100, 3, 92)?], 0)?;
    for rows in [rows, equal] {
        let found = search(&rows, 20, Metric::Euclidean, 0.95)?;
        let nearest = found.neighbours.distances.narrow(0, 0, 4600)?;
        assert_eq!(nearest.max_all()?.to_scalar::<f32>()?, 0.);
        assert!(found.recall.mean >= 0.95, "{:?}", found.recall);
    }
    Ok(())
}

/// They are at distance 1 from all rows, each other included.
#[test]
fn zero_rows_have_an_angle_to_none() -> Result<()> {
    let (n, k) = (6000, 15);
    let is_row = (uniform(n, &CPU, Philox::new(7, 105))?.ge(0.1)?.to_dtype(DType::F32)?).unsqueeze(1)?;
    let rows = gaussian(n, 6, 106)?.broadcast_mul(&is_row)?;
    let found = search(&rows, k, Metric::Cosine, 0.9)?;
    let share = share(&rows, &found.neighbours, Metric::Cosine)?;
    assert!(share > 0.87, "{share}");
    let (indices, distances) =
        (found.neighbours.indices.to_vec2::<u32>()?, found.neighbours.distances.to_vec2::<f32>()?);
    let is_row = is_row.flatten_all()?.to_vec1::<f32>()?;
    let zeros = (0..n).filter(|&i| is_row[i] == 0.);
    assert!(zeros.clone().count() > 400);
    for i in zeros {
        let others: Vec<u32> = (0..n as u32).filter(|&j| j as usize != i).take(k).collect();
        assert_eq!((&indices[i], &distances[i]), (&others, &vec![1.; k]), "row {i}");
    }
    Ok(())
}

#[test]
fn rows_without_features_are_searched() -> Result<()> {
    let found = search(&Tensor::zeros((5000, 0), DType::F32, &CPU)?, 4, Metric::Euclidean, 0.9)?;
    assert_eq!(found.neighbours.distances.max_all()?.to_scalar::<f32>()?, 0.);
    Ok(())
}

/// Sets that differ from one of forty in some places each.
#[test]
fn categories_and_sets_are_searched_to_the_recall_that_is_wanted() -> Result<()> {
    let (n, d) = (6000, 48);
    let draws = uniform((n, d), &CPU, Philox::new(7, 92))?.to_vec2::<f32>()?;
    let of_group = uniform((40, d), &CPU, Philox::new(7, 93))?.to_vec2::<f32>()?;
    let entry = |i: usize, c: usize| {
        let is_in = of_group[i % 40][c] < 0.4;
        f32::from(u8::from(is_in != (draws[i][c] < 0.08)))
    };
    let values: Vec<f32> = (0..n * d).map(|at| entry(at / d, at % d)).collect();
    let rows = Tensor::from_vec(values, (n, d), &CPU)?;
    for metric in [Metric::Hamming, Metric::Jaccard] {
        let found = search(&rows, 10, metric, 0.8)?;
        assert!(found.looked_at < 0.5, "{metric:?}: {}", found.looked_at);
        let share = share(&rows, &found.neighbours, metric)?;
        assert!(found.recall.mean >= 0.8 && share > 0.75, "{metric:?}: {share}, {:?}", found.recall);
        // The same sets by other numbers.
        let other = search(&(&rows * -3.5)?, 10, metric, 0.8)?;
        assert_eq!(other.neighbours.distances.to_vec2::<f32>()?.len(), n);
        let [one, three] = on_threads(|| search(&rows, 10, metric, 0.8).unwrap());
        assert_eq!(
            one.neighbours.indices.to_vec2::<u32>()?,
            three.neighbours.indices.to_vec2::<u32>()?,
            "{metric:?}"
        );
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_threads() -> Result<()> {
    let rows = gaussian(5000, 7, 107)?;
    for metric in [Metric::Euclidean, Metric::Cosine, Metric::Chebyshev] {
        let [one, three] = on_threads(|| search(&rows, 12, metric, 0.9).unwrap());
        assert!(one.looked_at < 1., "{metric:?}");
        assert_eq!(one.recall, three.recall);
        let (one, three) = (one.neighbours, three.neighbours);
        assert_eq!(one.indices.to_vec2::<u32>()?, three.indices.to_vec2::<u32>()?);
        assert_eq!(one.distances.to_vec2::<f32>()?, three.distances.to_vec2::<f32>()?);
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let rows = gaussian(5000, 3, 108)?;
    let euclidean = Metric::Euclidean;
    for wrong in [0., -0.5, 1.5, f64::NAN] {
        let want = format!("knn_approximate: recall must be above 0 and at most 1, got {wrong}");
        assert_eq!(message(knn_approximate(&rows, 5, euclidean, wrong, AT)), want);
    }
    let want = "knn: k must be in 1..=4999 for 5000 rows, got 5000";
    assert_eq!(message(knn_approximate(&rows, 5000, euclidean, 0.9, AT)), want);
    let want = "knn: k must be in 1..=4999 for 5000 rows, got 0";
    assert_eq!(message(knn_approximate(&rows, 0, euclidean, 0.9, AT)), want);
    let mut bad = rows.to_vec2::<f32>()?;
    bad[2][1] = f32::NAN;
    let want = "knn: rows must be finite, got NaN in row 2, column 1";
    for metric in Metric::ALL {
        assert_eq!(message(knn_approximate(&Tensor::new(bad.clone(), &CPU)?, 5, metric, 0.9, AT)), want);
    }
    Ok(())
}
