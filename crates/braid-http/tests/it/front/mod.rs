mod ending;
mod hostile;
mod proxy;
mod same;
mod support;
