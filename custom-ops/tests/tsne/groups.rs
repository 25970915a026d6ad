//! Searches by several ranks.
use super::inputs::*;
use candle::{Result, Tensor};
use chandlery_ops::tsne::{
    ApproximateNeighbours, Metric, Neighbours, knn, knn_approximate, knn_approximate_in_group, knn_in_group,
};
use chandlery_ops::{Group, Philox};

const AT: Philox = Philox::new(7, 97);

fn bits(found: &Neighbours) -> Result<(Vec<u32>, Vec<u32>)> {
    let distances = found.distances.flatten_all()?.to_vec1::<f32>()?;
    let distances = distances.into_iter().map(f32::to_bits).collect();
    Ok((found.indices.flatten_all()?.to_vec1()?, distances))
}

/// What each of `world` ranks finds.
fn each<T: Send>(world: usize, find: impl Fn(&Group) -> Result<T> + Sync) -> Result<Vec<T>> {
    Group::on_threads(Group::threads(world), find).into_iter().collect()
}

/// Rows of which some are equal, and one is zero, which has an angle to none.
fn rows(n: usize, d: usize) -> Result<Tensor> {
    let mut rows = gaussian(n, d, 140)?.flatten_all()?.to_vec1::<f32>()?;
    rows.copy_within(0..3 * d, (n - 3) * d);
    rows[4 * d..5 * d].fill(0.);
    Tensor::from_vec(rows, (n, d), &CPU)
}

#[test]
fn ranks_find_what_one_finds() -> Result<()> {
    for (n, k) in [(123, 7), (5, 2)] {
        let rows = rows(n, 6)?;
        for metric in Metric::ALL {
            let want = bits(&knn(&rows, k, metric)?)?;
            for world in 1..=4 {
                for found in each(world, |group| bits(&knn_in_group(group, &rows, k, metric)?))? {
                    assert!(found == want, "{metric:?}, {n} rows, {world} ranks");
                }
            }
        }
    }
    let few = rows(6, 3)?.narrow(0, 0, 3)?;
    for found in each(4, |group| bits(&knn_in_group(group, &few, 2, Metric::Euclidean)?))? {
        assert!(found == bits(&knn(&few, 2, Metric::Euclidean)?)?, "fewer rows than ranks");
    }
    Ok(())
}

#[test]
fn ranks_search_the_cells_that_one_searches() -> Result<()> {
    // Three quarters of these rows lie close together.
    let rows = Tensor::cat(&[rows(1501, 6)?, (gaussian(4999, 6, 141)? * 1e-3)?], 0)?;
    for metric in [Metric::Euclidean, Metric::Cosine, Metric::Correlation, Metric::Manhattan] {
        let facts =
            |found: ApproximateNeighbours| Ok((bits(&found.neighbours)?, found.recall, found.looked_at));
        let one = facts(knn_approximate(&rows, 9, metric, 0.8, AT)?)?;
        assert!(one.2 < 1., "{metric:?}: the search was exact");
        // Metrics differ in what is looked at, not in how it is divided.
        for world in if metric == Metric::Euclidean { 2..=4 } else { 3..=3 } {
            let find = |group: &Group| facts(knn_approximate_in_group(group, &rows, 9, metric, 0.8, AT)?);
            for (rank, found) in each(world, find)?.into_iter().enumerate() {
                assert!(found == one, "{metric:?}, rank {rank} of {world}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_no_rank_can_search_is_refused_by_each() -> Result<()> {
    let mut bad = vec![0.5f32; 40 * 3];
    bad[17 * 3 + 1] = f32::NAN;
    let bad = Tensor::from_vec(bad, (40, 3), &CPU)?;
    let said =
        each(3, |group| Ok([5, 40].map(|k| message(knn_in_group(group, &bad, k, Metric::Euclidean)))))?;
    for [not_finite, too_many] in said {
        assert_eq!(not_finite, "knn: rows must be finite, got NaN in row 17, column 1");
        assert_eq!(too_many, "knn: k must be in 1..=39 for 40 rows, got 40");
    }
    Ok(())
}
