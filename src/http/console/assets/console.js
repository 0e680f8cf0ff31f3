// Pages are whole without this: it only keeps their parts fresh.
import { keepLive } from "./live.js";

keepLive(document);
