//! The console as browsers meet it: who may look, what every answer carries, and that what people
//! write stays text. What is seen there is looked at in `tests/browser`.

mod back_office;
mod browser;
mod plans;
mod sessions;
mod users;
