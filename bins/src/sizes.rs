//! Networks in words: the sizes of their layers.
use chandlery::conv_rbm::ConvGrid;
use chandlery::dbn::DbnConfig;
use chandlery::feedforward::{Connections, FeedforwardConfig, LayerConfig, Task};
use chandlery::labelled::LabelledDbnConfig;
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{RbmConfig, RbmConnections};
use chandlery_datasets::count;

/// `784-500-500`: the sizes of a network's layers, the input's first.
pub fn of_network(dbn: &DbnConfig) -> String {
    let input = dbn.layers.first().map(|layer| layer.n_visible);
    let sizes = input.into_iter().chain(dbn.layers.iter().map(|layer| layer.n_hidden));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}

/// `6x6 windows of 8x8 every 4, 32 hidden units each`,
/// `24 filters of 9x9, maps of 20x20, pooled in blocks of 2x2`, or `500 hidden units, dense`: what
/// a layer is.
pub fn of_layer(layer: &RbmConfig) -> String {
    match &layer.connections {
        RbmConnections::Dense => format!("{}, dense", count(layer.n_hidden, "hidden unit")),
        RbmConnections::Filters(grid) => of_filters(grid),
        RbmConnections::Patches(grid) => of_patches(grid, layer.n_hidden),
    }
}

fn of_filters(grid: &ConvGrid) -> String {
    let pooled = match grid.pool {
        1 => String::new(),
        p => format!(", pooled in blocks of {p}x{p}"),
    };
    let apart = match grid.stride {
        1 => String::new(),
        stride => format!(" every {stride}"),
    };
    format!(
        "{} of {s}x{s}{apart}, maps of {}x{}{pooled}",
        count(grid.n_filters, "filter"),
        grid.maps_height(),
        grid.maps_width(),
        s = grid.size
    )
}

fn of_patches(grid: &PatchGrid, n_hidden: usize) -> String {
    format!(
        "{}x{} windows of {w}x{w} every {}, {} each",
        grid.down(),
        grid.across(),
        grid.stride,
        count(n_hidden / grid.n_patches(), "hidden unit"),
        w = grid.window
    )
}

/// What the outputs of a layer of a fine-tuned network see.
pub fn of_connections(layer: &LayerConfig) -> String {
    match &layer.connections {
        Connections::Dense => "all inputs".to_owned(),
        Connections::Patches(grid) => of_patches(grid, layer.n_outputs),
        Connections::FromPatches(grid) => format!("back from {}", of_patches(grid, layer.n_inputs)),
        Connections::Filters(grid) => of_filters(grid),
        Connections::FromFilters(grid) => format!("back from {}", of_filters(grid)),
    }
}

/// What the weights of layers of windows and of filters are in the files of a network that has
/// some.
pub fn of_weights(windows: bool, filters: bool) -> String {
    let mut text = String::new();
    if windows {
        text.push_str(
            " The weight of a layer of windows is [windows, hidden units of each, values of a window]: one such layer for each window, whose \
             hidden units stand next to each other in the output.",
        );
    }
    if filters {
        text.push_str(
            " The weight of a layer of filters is [filters, values of a filter], the channels of a place next to each other: it is applied \
             to each window of the layer below, and the output has the maps of a place next to each other.",
        );
    }
    text
}

/// A line for each layer that says what it is, where one has patches or filters; else none.
pub fn of_layers(dbn: &DbnConfig) -> Vec<String> {
    if dbn.layers.iter().all(|layer| layer.visible_places().is_none()) {
        return Vec::new();
    }
    let line = |(i, layer): (usize, &RbmConfig)| {
        format!("layer {}: {}, {}", i + 1, of_layer(layer), count(layer.n_parameters(), "parameter"))
    };
    dbn.layers.iter().enumerate().map(line).collect()
}

/// Weights, biases, and learned variances of all layers.
pub fn n_parameters_of(dbn: &DbnConfig) -> usize {
    dbn.layers.iter().map(RbmConfig::n_parameters).sum()
}

/// `784-500-10`: the sizes of a fine-tuned network's layers, the input's first.
pub fn of_fine_tuned(network: &FeedforwardConfig) -> String {
    let sizes = [network.n_inputs()].into_iter().chain(network.layers.iter().map(|layer| layer.n_outputs));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}

/// What a fine-tuned network is.
pub fn noun(network: &FeedforwardConfig) -> &'static str {
    match network.task {
        Task::Classify => "classifier",
        Task::Autoencode { .. } => "autoencoder",
    }
}

/// `784-500-[500+10]-2000`: the sizes of a network's layers, the labels beside the layer that they
/// stand with.
pub fn of_labelled(config: &LabelledDbnConfig) -> String {
    let m = config.n_lower();
    let size = |(l, n): (usize, &usize)| match l == m {
        true => format!("[{n}+{}]", config.n_classes),
        false => n.to_string(),
    };
    config.sizes.iter().enumerate().map(size).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery_datasets::ImageShape;

    #[test]
    fn layers_are_said_with_their_windows_and_parameters() {
        let grid = PatchGrid::of_image(ImageShape::grey(28, 28), 8, 4);
        let layers = vec![RbmConfig::patches(grid, 16).unwrap(), RbmConfig::new(576, 50)];
        let dbn = DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
        // 36 windows · 16 · 64 weights, 576 and 784 biases.
        assert_eq!(
            of_layers(&dbn),
            [
                "layer 1: 6x6 windows of 8x8 every 4, 16 hidden units each, 38224 parameters",
                "layer 2: 50 hidden units, dense, 29426 parameters"
            ]
        );
        assert_eq!(n_parameters_of(&dbn), 38224 + 29426);
        let grid = ConvGrid { pool: 2, ..ConvGrid::of_image(ImageShape::grey(28, 28), 9, 24) };
        let layers = vec![RbmConfig::convolution(grid).unwrap(), RbmConfig::new(2400, 50)];
        let dbn = DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
        // 24 · 81 weights, 24 biases of maps and one of pixels.
        assert_eq!(
            of_layers(&dbn)[0],
            "layer 1: 24 filters of 9x9, maps of 20x20, pooled in blocks of 2x2, 1969 parameters"
        );
        assert!(of_layers(&DbnConfig::new(&[4, 3])).is_empty());
        assert_eq!(n_parameters_of(&DbnConfig::new(&[4, 3])), 12 + 4 + 3);
    }
}
