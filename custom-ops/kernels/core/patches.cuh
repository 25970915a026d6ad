// patches.cuh: where the windows of a grid lie, as src/images/patches/grid.rs has it.
#pragma once

struct Grid {
  int planes, height, width, depth, window, stride;
  int across, down;  // windows from left to right and from top to bottom
  int values;        // of a row of the grid
  int hidden;        // units of a patch

  __device__ int run() const { return window * depth; }  // entries of a window that follow each other
  __device__ int window_len() const { return planes * window * run(); }
  __device__ int patches() const { return across * down; }
  __device__ int units() const { return patches() * hidden; }
  // Where the window of a patch begins in a row, and entry `i` of a window from there on.
  __device__ int origin(int patch) const { return (patch / across * width + patch % across) * stride * depth; }
  __device__ int entry(int i) const {
    const int line = i / run();
    return (line / window * height + line % window) * width * depth + (i - line * run());
  }

  // The grid cut into cells of stride x stride places, in which the same windows meet. `overlap`
  // windows cover a cell in each direction.
  __device__ int overlap() const { return (window + stride - 1) / stride; }
  __device__ int cells_across() const { return (width + stride - 1) / stride; }
  __device__ int cell_len() const { return stride * stride * depth; }
};

// A cell of the grid: value u of it is in line u / run, run = stride * depth.
struct Cell {
  int plane, y, x;

  __device__ Cell(const Grid& g, int cell) {
    const int of_plane = cell / g.cells_across();
    const int lines = (g.height + g.stride - 1) / g.stride;
    x = cell % g.cells_across(), y = of_plane % lines, plane = of_plane / lines;
  }

  // The place of value u in a row; -1 beyond the grid.
  __device__ int place(const Grid& g, int u) const {
    const int run = g.stride * g.depth, line = u / run, along = x * run + (u - line * run);
    const int of_y = y * g.stride + line;
    return u < g.cell_len() && of_y < g.height && along < g.width * g.depth ? (plane * g.height + of_y) * g.width * g.depth + along : -1;
  }

  // The patch that lies dy cells further up and dx further left; -1 where there is none.
  __device__ int patch(const Grid& g, int dy, int dx) const {
    const int py = y - dy, px = x - dx;
    return py >= 0 && py < g.down && px >= 0 && px < g.across ? py * g.across + px : -1;
  }

  // The entry of value u in the window of that patch; -1 where the window does not reach it.
  __device__ int entry(const Grid& g, int u, int dy, int dx) const {
    const int run = g.stride * g.depth, line = u / run, along = dx * run + (u - line * run);
    const int of_y = dy * g.stride + line;
    return u < g.cell_len() && of_y < g.window && along < g.run() ? (plane * g.window + of_y) * g.run() + along : -1;
  }
};
