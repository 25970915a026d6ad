//! The ops of t-SNE against their references, and what they promise whatever the data.
#![allow(clippy::expect_used, clippy::unwrap_used)]
mod affinities;
mod approximate;
mod approximate_of;
mod groups;
mod inputs;
mod layout;
mod neighbours;
mod repulsion;
mod streamed;
mod weights;
