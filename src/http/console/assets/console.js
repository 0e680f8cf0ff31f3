// Pages are whole without this: it only keeps their parts fresh, and what is written in their forms.
import { watchForms } from "./forms.js";
import { keepLive } from "./live.js";

keepLive(document);
watchForms();
