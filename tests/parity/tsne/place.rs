//! New points in a layout that stays.
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::tsne::{
    PlaceState, PlaceSteps, RepulsionField, place_points, place_points_, place_points_reference,
};
use chandlery_tests::devices;

const STEPS: PlaceSteps = PlaceSteps {
    degrees_of_freedom: 1.,
    iterations: 100,
    exaggeration: 1.5,
    learning_rate: 0.1,
    momentum: 0.8,
    largest_gradient: 0.25,
};

/// `n` points around some places, so that some parts of the box are empty.
fn layout(n: usize, d: usize) -> Result<Tensor> {
    let centres = (normal((7, d), &Device::Cpu, Philox::new(31, 1))? * 12.)?;
    let of = Tensor::from_vec((0..n).map(|i| (i % 7) as u32).collect::<Vec<_>>(), n, &Device::Cpu)?;
    (centres.index_select(&of, 0)? + normal((n, d), &Device::Cpu, Philox::new(31, 2))?)? + 3.
}

/// Neighbours of `m` points, all of one group but for every tenth point, and their affinities.
fn neighbours(m: usize, k: usize, n: usize) -> Result<(Tensor, Tensor)> {
    let one = |i: usize, e: usize| {
        let step = if i.is_multiple_of(10) { 1 } else { 7 };
        ((i * 13 + e * step) % n) as u32
    };
    let indices: Vec<u32> = (0..m * k).map(|e| one(e / k, e % k)).collect();
    let p = (uniform((m, k), &Device::Cpu, Philox::new(31, 3))? + 0.05)?;
    Ok((Tensor::from_vec(indices, (m, k), &Device::Cpu)?, p.broadcast_div(&p.sum_keepdim(1)?)?))
}

/// The distances of points with the same number.
fn distances(a: &Tensor, b: &Tensor) -> Result<Vec<f64>> {
    let (a, b) = (a.to_device(&Device::Cpu)?, b.to_device(&Device::Cpu)?);
    let (a, b) = (a.to_dtype(candle::DType::F64)?, b.to_dtype(candle::DType::F64)?);
    (a - b)?.sqr()?.sum(1)?.sqrt()?.to_vec1()
}

/// The largest of them.
fn apart(a: &Tensor, b: &Tensor) -> Result<f64> {
    let all = distances(a, b)?;
    assert!(all.iter().all(|d| !d.is_nan()), "a place is NaN: {all:?}");
    Ok(all.into_iter().fold(0., f64::max))
}

#[test]
fn points_come_to_the_places_of_exact_sums_and_on_a_grid_close_to_them() -> Result<()> {
    for (m, n, d, k) in [(1, 40, 2, 1), (33, 300, 2, 15), (50, 700, 3, 17), (17, 500, 2, 70)] {
        let (y, (neighbours, p)) = (layout(n, d)?, neighbours(m, k, n)?);
        for alpha in [1f32, 0.6] {
            let steps = PlaceSteps { degrees_of_freedom: alpha, ..STEPS };
            let wanted = place_points_reference(&neighbours, &p, &y, &steps)?;
            // A point between groups comes to another place for the least change of the forces: how
            // far each point is moved by a thousandth of the attraction.
            let stronger = PlaceSteps { exaggeration: 1.001 * steps.exaggeration, ..steps };
            let moved = distances(&place_points_reference(&neighbours, &p, &y, &stronger)?, &wanted)?;
            for device in devices()? {
                let there = |t: &Tensor| t.to_device(&device);
                let (y, neighbours, p) = (there(&y)?, there(&neighbours)?, there(&p)?);
                let exact = place_points(&neighbours, &p, &y, None, &steps)?;
                let off = apart(&exact, &wanted)?;
                assert!(off < 1e-3, "{:?}, {m} of {n}, α {alpha}: {off} off", device.location());
                if d == 2 {
                    // The error of the forces falls with the fourth power of the distance of nodes.
                    for (distance, most, share) in [(0.25, 1e-2, 2.), (0.1, 1e-3, 0.1)] {
                        let field = RepulsionField::new(&y, distance, 5., alpha)?;
                        let placed = place_points(&neighbours, &p, &y, Some(&field), &steps)?;
                        for (i, (off, moved)) in distances(&placed, &wanted)?.iter().zip(&moved).enumerate() {
                            assert!(
                                *off < most + share * moved,
                                "{:?}, {m} of {n}, α {alpha}: point {i} is {off} off at nodes {distance} apart, which a thousandth moves by {moved}",
                                device.location()
                            );
                        }
                        let again = place_points(&neighbours, &p, &y, Some(&field), &steps)?;
                        assert_eq!(placed.to_vec2::<f32>()?, again.to_vec2::<f32>()?);
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_point_begins_at_the_weighted_median_of_its_neighbours() -> Result<()> {
    let y = Tensor::new(&[[0f32, 5.], [1., 4.], [9., 3.], [100., -50.]], &Device::Cpu)?;
    let neighbours = Tensor::new(&[[0u32, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]], &Device::Cpu)?;
    let p =
        Tensor::new(&[[0.25f32, 0.25, 0.25, 0.25], [0.1, 0.3, 0.3, 0.3], [0., 0.6, 0.2, 0.2]], &Device::Cpu)?;
    let still = PlaceSteps { iterations: 0, ..STEPS };
    for device in devices()? {
        let there = |t: &Tensor| t.to_device(&device);
        let (y, neighbours, p) = (there(&y)?, there(&neighbours)?, there(&p)?);
        let field = RepulsionField::new(&y, 1., 2., 1.)?;
        for field in [None, Some(&field)] {
            // Of four equal weights the middle of the two; of unequal ones where half is reached; and
            // what has no weight does not count.
            let at = place_points(&neighbours, &p, &y, field, &still)?.to_vec2::<f32>()?;
            assert_eq!(at, [[5., 3.5], [1., 4.], [100., -50.]], "{:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn points_that_leave_the_grid_go_on_with_exact_sums_and_others_do_not_feel_it() -> Result<()> {
    let (y, (neighbours, p)) = (layout(600, 2)?, neighbours(40, 10, 600)?);
    // Weak attraction and long steps: points are pushed out of the box.
    let steps = PlaceSteps { exaggeration: 0.05, learning_rate: 3., largest_gradient: 5., ..STEPS };
    for device in devices()? {
        let there = |t: &Tensor| t.to_device(&device);
        let (y, neighbours, p) = (there(&y)?, there(&neighbours)?, there(&p)?);
        let narrow = RepulsionField::new(&y, 0.1, 1., 1.)?;
        let placed = place_points(&neighbours, &p, &y, Some(&narrow), &steps)?;
        let exact = place_points(&neighbours, &p, &y, None, &steps)?;
        let (placed_on, exact_at) = (placed.to_vec2::<f32>()?, exact.to_vec2::<f32>()?);
        let points = y.to_vec2::<f32>()?;
        let most = |k: usize| points.iter().map(|y| y[k]).fold(f32::NEG_INFINITY, f32::max);
        let least = |k: usize| points.iter().map(|y| y[k]).fold(f32::INFINITY, f32::min);
        let (low, high) = ([least(0), least(1)], [most(0), most(1)]);
        let far = |y: &[f32]| (0..2).any(|k| y[k] > high[k] + 10. || y[k] < low[k] - 10.);
        let left = exact_at.iter().filter(|y| far(y)).count();
        assert!(left > 0, "no point leaves: the test says nothing");
        for (i, (a, b)) in placed_on.iter().zip(&exact_at).enumerate() {
            assert!(a.iter().all(|x| x.is_finite()), "{i}: {a:?}");
            if far(b) {
                assert_eq!(a, b, "{:?}: point {i} left, and is where exact sums put it", device.location());
            }
        }
        // In parts they come to the same bits, on the grid and off it.
        for (field, whole) in [(Some(&narrow), &placed_on), (None, &exact_at)] {
            let mut state = PlaceState::new(40, 2, &device)?;
            for iterations in [0, 30, 1, 0, 69] {
                let part = PlaceSteps { iterations, ..steps };
                place_points_(&mut state, &neighbours, &p, &y, field, &part)?;
            }
            assert_eq!((state.made, &state.points.to_vec2::<f32>()?), (100, whole));
            let exactly = state.outside.to_vec1::<u32>()?;
            let exactly = exactly.iter().filter(|&&outside| outside == PlaceState::EXACTLY).count();
            assert_eq!(exactly >= left, field.is_some(), "{exactly} go with exact sums, {left} left");
        }
        // Each by itself comes to the same bits.
        for i in [0, 7, 39] {
            let part = |t: &Tensor| t.narrow(0, i, 1);
            let alone = place_points(&part(&neighbours)?, &part(&p)?, &y, Some(&narrow), &steps)?;
            assert_eq!(alone.to_vec2::<f32>()?[0], placed_on[i]);
        }
    }
    Ok(())
}

#[test]
fn layouts_of_one_place_have_fields_and_what_makes_no_sense_is_refused() -> Result<()> {
    let message = |result: Result<Tensor>| result.err().map_or_else(String::new, |e| e.to_string());
    for device in devices()? {
        let y = Tensor::full(4f32, (300, 2), &device)?;
        let (neighbours, p) = neighbours(20, 5, 300)?;
        let (neighbours, p) = (neighbours.to_device(&device)?, p.to_device(&device)?);
        let field = RepulsionField::new(&y, 0.25, 5., 1.)?;
        for field in [None, Some(&field)] {
            // A point on all others has no direction to go to.
            let placed = place_points(&neighbours, &p, &y, field, &STEPS)?;
            let off = apart(&placed, &Tensor::full(4f32, (20, 2), &device)?)?;
            assert!(off < 1e-2, "{:?}: {off}", device.location());
        }
        let none = y.narrow(0, 0, 0)?;
        assert_eq!(
            place_points(&neighbours.narrow(0, 0, 0)?, &p.narrow(0, 0, 0)?, &y, None, &STEPS)?.dims(),
            [0, 2]
        );
        assert!(RepulsionField::new(&none, 1., 1., 1.).is_err());
        let far = Tensor::full(300u32, (20, 5), &device)?;
        let of_others = &mut PlaceState::new(19, 2, &device)?;
        let error = message(place_points_(of_others, &neighbours, &p, &y, None, &STEPS).map(|()| y.clone()));
        assert!(error.contains("points must have shape [20, 2], got [19, 2]"), "{error}");
        let error = message(place_points(&far, &p, &y, Some(&field), &STEPS));
        assert!(error.contains("neighbours must be below 300, got 300"), "{error}");
        let other = PlaceSteps { degrees_of_freedom: 2., ..STEPS };
        let error = message(place_points(&neighbours, &p, &y, Some(&field), &other));
        assert!(error.contains("degrees of freedom"), "{error}");
        let bad = Tensor::new(&[[0f32, f32::NAN], [0., 0.]], &device)?;
        let error = RepulsionField::new(&bad, 1., 1., 1.).err().map_or_else(String::new, |e| e.to_string());
        assert!(error.contains("row 0, column 1"), "{error}");
    }
    Ok(())
}
