mod ending;
mod floods;
mod hostile;
mod proxy;
mod same;
mod smuggling;
mod support;
